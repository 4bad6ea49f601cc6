"""Reports on finished runs: one HTML page, tables, figures for a paper, and CSV files.

`write_report` writes the page of one or several run folders; `write_figures`, `write_csv` and
`write_latex` write its figures and tables as files. `read_runs` and `frame` return the numbers for
your own analysis.
"""

from undrift.report.csv_files import write_csv
from undrift.report.figures import write_figures
from undrift.report.html.html_page import write_page, write_report
from undrift.report.latex_files import write_latex
from undrift.report.recorded_runs import RunFiles, Runs, frame, of_results, read_runs
from undrift.report.tables import as_target

__all__ = [
    "RunFiles",
    "Runs",
    "as_target",
    "frame",
    "of_results",
    "read_runs",
    "write_csv",
    "write_figures",
    "write_latex",
    "write_page",
    "write_report",
]
