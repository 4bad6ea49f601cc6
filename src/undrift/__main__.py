"""`python -m undrift` is `undrift`."""

from undrift.cli import main

main()
