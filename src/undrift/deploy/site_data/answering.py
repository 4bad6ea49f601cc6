"""A site's part in an agreement: it answers each question of a run once, and keeps the result.

A server could learn single values by asking again and again. So a site answers only the questions
that its own experiment needs, in their order, and remembers them on disk before it answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from undrift.data.federated import FederatedData
from undrift.data.tabular.answers import CELLS_STAGE, COUNTS, DEVIATIONS
from undrift.data.tabular.encoding import is_finite
from undrift.data.tabular.features import NUMBER, Feature
from undrift.data.tabular.medians import CELLS, LEVELS
from undrift.data.tabular.statistics import Needs, answer
from undrift.deploy.orders import StatisticsTerms
from undrift.deploy.policy.gate import Approve
from undrift.deploy.policy.limits import LIMITS_FILE, Limits
from undrift.deploy.site_data.agreed import CLASSES, Agreed, Wanted, agreed_from
from undrift.deploy.state_files import make_folder
from undrift.deploy.wire_format import InvalidMessage
from undrift.utils.errors import UndriftError
from undrift.utils.files import written_whole

FOLDER = "agreements"
"""The folder of a site's agreements, beside its ledger: a file for each run."""
RUN_NAME = re.compile("[0-9a-f]{16}")


class SiteStatistics:
    """The statistics that a site gives, and the data that follow from what the sites agree on.

    Parameters
    ----------
    name
        the name of the site
    needed
        the statistics that the site's own experiment needs
    data
        the site's data; tables have no inputs yet
    folder
        the site's part of the state folder
    limits
        the site's own limits
    approve
        asks a person before the first question of a run; None to ask nobody
    """

    def __init__(
        self,
        name: str,
        needed: Wanted,
        data: FederatedData,
        folder: Path,
        limits: Limits,
        approve: Approve | None = None,
    ):
        self._name = name
        self._needed = needed
        self._data = data
        self._folder = folder / FOLDER
        self._limits = limits
        self._approve = approve

    def answer(self, run: Any, question: Any) -> dict[str, Any]:
        """The answer to a question of a run; `InvalidMessage` if it is not one of its questions."""
        _require(isinstance(question, Mapping), "no question")
        known = self._read(run)
        if known is None:
            known = self._begin(run)
        _require(known["approved"], "a person there declined the run's questions")
        if question not in known["questions"]:
            _require(known["agreed"] is None, "the run's agreement is complete")
            self._require_next(dict(question), known["questions"])
            known["questions"].append(dict(question))
            self._write(run, known)
        return self._answer(dict(question))

    def accept(self, run: Any, value: Any) -> None:
        """Keep what the sites agreed on for a run; the first one stays."""
        known = self._read(run)
        if known is None:
            raise InvalidMessage(f"The site {self._name!r} gave no statistics for this run.")
        try:
            agreed = agreed_from(value)
        except UndriftError as error:
            why = f"The site {self._name!r} cannot use what was agreed on: {error}"
            raise InvalidMessage(why) from None
        self._apply(agreed)
        _require(known["agreed"] in (None, agreed.plain()), "the run has another agreement already")
        if known["agreed"] is None:
            known["agreed"] = agreed.plain()
            self._write(run, known)

    def of_run(self, run: str) -> tuple[FederatedData, Agreed]:
        """The site's data as the sites of a run agreed to encode them, and the agreement."""
        if not self._needed:
            return self._data, Agreed()
        known = self._read(run)
        if known is None or known["agreed"] is None:
            raise InvalidMessage(f"The site {self._name!r} has no agreement for this run.")
        agreed = agreed_from(known["agreed"])
        return self._apply(agreed), agreed

    def _apply(self, agreed: Agreed) -> FederatedData:
        if self._needed.columns is None or self._data.tabular is None:
            return self._data
        if agreed.encoding is None:
            raise UndriftError("it has no encoding.")
        return self._data.encoded(agreed.encoding)

    # Questions

    def _begin(self, run: Any) -> dict[str, Any]:
        """Remember a new run of which statistics are asked."""
        _require(bool(self._needed), "its experiment needs no statistics")
        samples = len(self._data.train)
        least = self._limits.min_samples
        _require(samples >= least, f"it has fewer than {least} samples (min_samples)")
        others = len(list(self._folder.glob("*.json"))) if self._folder.is_dir() else 0
        most = self._limits.max_runs
        _require(others < most, f"it has answered questions of {most} runs (max_runs)")
        terms = StatisticsTerms(str(run), tuple(self._needed.revealed()))
        approved = self._approve is None or self._approve(terms)
        known = {"approved": approved, "questions": [], "agreed": None}
        self._write(run, known)
        return known

    def _require_next(self, question: dict[str, Any], before: list[dict[str, Any]]) -> None:
        """Refuse a question unless it is the next one of an honest agreement."""
        stage, asked = question.get("stage"), [each["stage"] for each in before]
        columns = self._needed.columns
        _require(
            columns is None or self._data.tabular is not None,
            "its files are no tables: read arrays with file.py:function",
        )
        if stage == CLASSES:
            allowed = self._needed.classes and set(question) == {"stage"} and stage not in asked
        elif columns is None:
            allowed = False
        elif stage == COUNTS:
            allowed = set(question) == {"stage"} and not asked
        elif stage == DEVIATIONS:
            names = {each.name for each in self._numbers() if Needs(columns).deviation(each)}
            allowed = asked == [COUNTS] and _has_numbers(question, "means", names)
        else:
            allowed = stage == CELLS_STAGE and _is_next_level(question, before)
        _require(bool(allowed), "it is not a question of this experiment, or out of order")

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        if question["stage"] == CLASSES:
            return {CLASSES: self._class_counts()}
        columns, tabular = self._needed.columns, self._data.tabular
        assert columns is not None
        assert tabular is not None
        found = answer(question, Needs(columns), tabular.samples_of(self._data.train, 0))
        least = self._limits.min_samples
        for name in found.get("sums", {}):
            present = found["present"][name]
            _require(
                present == 0 or present >= least,
                f"the column {name!r} has only {present} values there, fewer than {least} "
                f"(min_samples in {LIMITS_FILE}): drop it, or fill it with a constant",
            )
        return found

    def _class_counts(self) -> list[int]:
        part = self._data.train
        _require(
            isinstance(part.y, Tensor) and not part.y.is_floating_point(),
            "its targets are no classes in memory",
        )
        return [int(each) for each in torch.bincount(part.y[part.rows].flatten())]

    def _numbers(self) -> list[Feature]:
        assert self._data.tabular is not None
        return list(self._data.tabular.features["train"].named(NUMBER))

    # Files

    def _file(self, run: Any) -> Path:
        valid = isinstance(run, str) and RUN_NAME.fullmatch(run) is not None
        _require(valid, "the run has no valid name")
        return self._folder / f"{run}.json"

    def _read(self, run: Any) -> dict[str, Any] | None:
        path = self._file(run)
        if not path.is_file():
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def _write(self, run: Any, known: Mapping[str, Any]) -> None:
        make_folder(self._folder)
        with written_whole(self._file(run)) as partial:
            partial.write_text(json.dumps(known), encoding="utf-8")


def _has_numbers(question: Mapping[str, Any], key: str, names: set[str]) -> bool:
    """Whether a question has a finite number of each name under a key, and nothing else."""
    found = question.get(key)
    return (
        set(question) == {"stage", key}
        and isinstance(found, Mapping)
        and set(found) == names
        and all(is_finite(each) for each in found.values())
    )


def _is_next_level(question: Mapping[str, Any], before: list[dict[str, Any]]) -> bool:
    """Whether a question for counts in cells follows from the questions before it."""
    centres, paths = question.get("centres"), question.get("paths")
    if set(question) != {"stage", "centres", "paths"} or len(before) < 2:
        return False
    if not isinstance(centres, Mapping) or not isinstance(paths, Mapping):
        return False
    means = before[1].get("means", {})
    levels = [each for each in before if each["stage"] == CELLS_STAGE]
    known = all(
        isinstance(centre, list)
        and len(centre) == 2
        and all(is_finite(each) for each in centre)
        and centre[0] == means.get(name)
        for name, centre in centres.items()
    )
    if not known or paths.keys() != centres.keys() or len(levels) >= LEVELS:
        return False
    if not levels:
        return all(path == [] for path in paths.values())
    last = levels[-1]
    return centres == last["centres"] and all(
        isinstance(path, list)
        and path[:-1] == last["paths"][name]
        and len(path) == len(levels)
        and type(path[-1]) is int
        and 0 <= path[-1] < CELLS
        for name, path in paths.items()
    )


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise InvalidMessage(f"The site refuses the request for statistics: {why}.")
