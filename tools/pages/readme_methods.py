"""Write the table of methods in the README; only the words "use it for" are written by hand.

python -m tools.pages.readme_methods README.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tools.pages.methods.generated_blocks import refreshed
from tools.pages.methods.method_sections import table
from undrift.core.method import Method
from undrift.methods import METHODS, FedNova
from undrift.methods.traffic import traffic_of
from undrift.privacy.refusals import check_method
from undrift.utils.errors import UndriftError, require
from undrift.utils.files import written_whole

FEDNOVA_VR = "FedNova(variance_reduction=True)"
USES = {
    ("FedAvg", "FedProx"): "similar clients: the usual baselines",
    ("SCAFFOLD",): "different data, many clients per round",
    ("FedDyn",): "different data, few clients per round",
    ("FedDR",): "the same, with an l1, l2 or box constraint on the model",
    ("FedADMM",): "the same, with rough local solutions",
    ("FedNova", "FedAvgMin"): "clients that do unequal numbers of steps on similar data",
    (FEDNOVA_VR,): "unequal steps and different data",
    ("FedSplit", "Scaffnew", "VRLSGD"): "all clients in every round; the last two: equal steps",
    ("FedPD",): "all clients in every round, some rounds without communication",
    ("FedVARP", "MIFA"): "clients that are often absent",
    ("FedACG", "MimeLite"): "momentum, with clients that keep nothing",
    ("FedCM",): "the same, with the cohort's mean direction",
    ("FedExP",): "longer server steps where the clients' updates disagree",
    ("FedSAM",): "models that overfit: it prefers flat minima",
    ("FedSpeed",): "the same, with the drift removed as in `FedDyn`",
    ("FedLGA",): "clients that do not finish their work",
    ("Ditto", "PFedMe"): "one model for each client besides the common one",
    ("AsyncFedDR",): "slow clients and different data",
    ("FedAsync", "FedBuff"): "slow clients: the server does not wait",
    ("DistributedSGD",): "the baseline with one gradient step per round",
}
"""What each group of methods is for, in the order of the table."""
HEAD = ("method", "use it for", "optimum", "private", "personal", "asynchronous", "client keeps")
YES, NO = "yes", "–"


def method_named(name: str) -> Method:
    """Return the method of a name in `USES`, with its default options."""
    return FedNova(variance_reduction=True) if name == FEDNOVA_VR else METHODS[name]()


def properties(method: Method) -> dict[str, str]:
    """Return the columns that the code decides."""
    try:
        check_method(method)
        private = not method.meant_asynchronous  # privacy is defined for synchronous rounds
    except UndriftError:
        private = False
    asynchronous = "always" if method.meant_asynchronous else "can" if method.asynchronous else NO
    kept = traffic_of(method).kept_vectors
    return {
        "optimum": YES if method.converges_to == "optimum" else NO,
        "private": YES if private else NO,
        "personal": YES if method.own_model is not None else NO,
        "asynchronous": asynchronous,
        "client keeps": f"{kept} vector{'s' if kept > 1 else ''}" if kept else NO,
    }


def methods() -> Iterator[str]:
    """Yield the table, a row per group of methods that agree in every column."""
    named = {name for group in USES for name in group} - {FEDNOVA_VR}
    missing = sorted(METHODS.keys() ^ named)
    require(not missing, f"The README's table and METHODS differ in: {', '.join(missing)}.")
    rows = []
    for group, use in USES.items():
        own = [properties(method_named(name)) for name in group]
        names = ", ".join(
            "`FedNova` with control variates" if n == FEDNOVA_VR else f"`{n}`" for n in group
        )
        require(own.count(own[0]) == len(own), f"The methods {names} differ: give each a row.")
        rows.append((names, use, *own[0].values()))
    yield from table(HEAD, rows)


def page(text: str) -> str:
    """Return the README with a current table."""
    return refreshed(text, {"methods": methods}, "README.md", keep=("speed",))


def main(path: str) -> None:
    """Refresh the table of a file."""
    text = page(Path(path).read_text(encoding="utf-8"))
    with written_whole(Path(path)) as partial:
        partial.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
