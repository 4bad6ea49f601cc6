"""The live page of `undrift run --live`: it shows runs while they are going.

`LiveRuns` is an observer that keeps what a page needs, `live_page` makes the page, and `serving`
serves it to browsers on this machine.
"""

from undrift.report.live.live_runs import LiveRuns
from undrift.report.live.live_server import serving

__all__ = ["LiveRuns", "serving"]
