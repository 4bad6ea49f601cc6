"""`python -m tools.pages.methods docs/methods [--verify]`."""

import sys
from pathlib import Path

from tools.pages.methods.pages import write
from tools.pages.methods.verification import measure
from undrift.utils.errors import UndriftError


def main(arguments: list[str]) -> None:
    """Refresh the pages of a folder."""
    places = [each for each in arguments if each != "--verify"]
    if len(places) != 1:
        sys.exit("usage: python -m tools.pages.methods docs/methods [--verify]")
    folder = Path(places[0])
    try:
        if "--verify" in arguments:
            measure(folder)
        print(*write(folder), sep="\n")
    except UndriftError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
