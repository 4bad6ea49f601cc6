"""The figures and tables of papers, each as a command: `undrift reproduce NAME`.

There is a folder per paper, with a script and an experiment file per figure or table. They share:

- `reproduction`: the description of a reproduction
- `registry`: all reproductions by name
- `lab`: executes its runs, stores them and resumes them
- `curves`: numbers and lines from runs
- `findings`: published next to measured numbers, claims, and the panels of the figure
- `reproducing`: runs a reproduction and writes its findings, figure and page

Internal: names may change; the public ones are in `undrift.__all__` and the API reference.
"""

from undrift.reproduce.registry import NAMES, find
from undrift.reproduce.reproducing import reproduce

__all__ = ["NAMES", "find", "reproduce"]
