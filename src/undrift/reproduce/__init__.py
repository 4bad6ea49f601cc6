"""The papers' figures and tables, each as a command: `undrift reproduce NAME`.

A folder per paper; in it, a script and an experiment file per figure or table. What they share:

- `reproduction`: what a reproduction is, in its own words
- `lab`: where it does its runs, kept and resumable
- `curves`: numbers and lines from runs
- `findings`: published next to measured, claims, and the panels of the figure
- `reproducing`: doing one and writing what it found
"""

from undrift.reproduce.registry import NAMES, find
from undrift.reproduce.reproducing import reproduce

__all__ = ["NAMES", "find", "reproduce"]
