"""Optuna's search, made so that a killed sweep goes on as if it had not been."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from undrift.runs.sweeps.grids import Space, canonical, digest
from undrift.utils.errors import UndriftError, first_line


class Search:
    """Optuna's search in one method's space, kept in a file.

    What is tried next is a function of the seed, the number of the trial and what is known by
    then: trials are asked for `jobs` at a time and told together, so that neither the order in
    which they end nor a killed sweep changes the search.

    Parameters
    ----------
    space
        what is searched
    file
        where the trials are kept
    name
        of what is searched; another name starts anew
    seed
        of the sampler
    """

    def __init__(self, space: Space, file: Path, name: str, seed: int = 0):
        try:
            import optuna
        except ImportError as error:
            raise UndriftError(
                "A range in [sweep] needs Optuna: pip install 'undrift[search]'."
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._seed, self._name = optuna, seed, name
        self._space = space
        try:
            self._study = optuna.create_study(
                storage=f"sqlite:///{file.absolute()}", study_name=name, load_if_exists=True
            )
        except Exception as error:  # whatever its database raises
            raise UndriftError(
                f"The search cannot be kept in {file}: {first_line(error)}."
            ) from error
        kinds = optuna.distributions
        self._kinds: dict[str, Any] = {
            # Its database keeps words, numbers and truth values only: lists are written as JSON.
            key: kinds.CategoricalDistribution([canonical(each) for each in values])
            for key, values in space.lists.items()
        }
        for key, each in space.ranges.items():
            whole = isinstance(each.low, int) and isinstance(each.high, int)
            kind: Any = kinds.IntDistribution if whole else kinds.FloatDistribution
            self._kinds[key] = kind(each.low, each.high, log=each.log)

    def told(self) -> dict[int, dict[str, Any]]:
        """The trials that are done, by number."""
        done = self._study.get_trials(states=(self._optuna.trial.TrialState.COMPLETE,))
        return {trial.number: self._settings(trial.params) for trial in done}

    def trials(self, total: int, jobs: int) -> Iterator[dict[int, dict[str, Any]]]:
        """Trials to be done and told, `jobs` at a time, until there are `total`."""
        while trials := self._open(total, jobs):
            yield {number: self._settings(params) for number, params in trials.items()}

    def _open(self, total: int, jobs: int) -> dict[int, dict[str, Any]]:
        """The trials that are asked for and not told, after asking for as many as are due."""
        state = self._optuna.trial.TrialState
        found = {}
        for each in self._study.get_trials(states=(state.RUNNING,)):
            if set(each.params) == set(self._kinds):
                found[each.number] = each.params
            else:  # killed while it was asked for
                self._study.tell(each.number, state=state.FAIL)
        count = len(found) + len(self.told())
        # What a killed sweep asked for may be a part of a generation, which is completed first.
        whole = bool(found) and count % jobs == 0
        due = count if whole else (count // jobs + 1) * jobs
        for number in range(count, min(total, due)):
            self._study.sampler = self._optuna.samplers.TPESampler(
                seed=int(digest([self._seed, self._name, number])[:8], 16)
            )
            trial = self._study.ask(self._kinds)
            found[trial.number] = trial.params
        return found

    def tell(self, number: int, cost: Sequence[float]) -> None:
        """What a trial cost, the first part before the second; infinity for one that diverged."""
        first, second = cost
        self._study.tell(number, first if first else second)

    def _settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        lists = self._space.lists
        return {k: json.loads(params[k]) if k in lists else params[k] for k in self._kinds}
