"""Search intervals with Optuna so that a killed sweep continues with the same trials."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from undrift.runs.sweeps.grids import Space, canonical, digest
from undrift.utils.errors import UndriftError, first_line


class Search:
    """Optuna's search in one method's space, stored in a file.

    The next settings are a function of the seed, the number of the trial and the results so far.
    Trials are asked for `jobs` at a time and their results are reported together, so that neither
    the order in which they end nor a killed sweep changes the search.

    Parameters
    ----------
    space
        the search space
    file
        the SQLite file of the trials
    name
        name of the study; another name starts a new search
    seed
        seed of Optuna's sampler
    """

    def __init__(self, space: Space, file: Path, name: str, seed: int = 0):
        try:
            import optuna
        except ImportError as error:
            raise UndriftError(
                "An interval in [sweep] needs Optuna: pip install 'undrift[search]'."
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
                f"The search cannot be stored in {file}: {first_line(error)}."
            ) from error
        kinds = optuna.distributions
        self._kinds: dict[str, Any] = {
            # Optuna stores texts, numbers and booleans only, so that lists become JSON.
            key: kinds.CategoricalDistribution([canonical(each) for each in values])
            for key, values in space.lists.items()
        }
        for key, each in space.ranges.items():
            whole = isinstance(each.low, int) and isinstance(each.high, int)
            kind: Any = kinds.IntDistribution if whole else kinds.FloatDistribution
            self._kinds[key] = kind(each.low, each.high, log=each.log)

    def finished(self) -> dict[int, dict[str, Any]]:
        """The settings of the trials whose results are known, by number."""
        done = self._study.get_trials(states=(self._optuna.trial.TrialState.COMPLETE,))
        return {trial.number: self._settings(trial.params) for trial in done}

    def trials(self, total: int, jobs: int) -> Iterator[dict[int, dict[str, Any]]]:
        """Batches of trials, `jobs` at a time until there are `total`.

        The results of a batch must be reported by `tell` before the next one is asked for.
        """
        while trials := self._open(total, jobs):
            yield {number: self._settings(params) for number, params in trials.items()}

    def _open(self, total: int, jobs: int) -> dict[int, dict[str, Any]]:
        """The trials without a result, after asking Optuna for the rest of the current batch."""
        state = self._optuna.trial.TrialState
        found = {}
        for each in self._study.get_trials(states=(state.RUNNING,)):
            if set(each.params) == set(self._kinds):
                found[each.number] = each.params
            else:  # the sweep was killed while it asked for this trial
                self._study.tell(each.number, state=state.FAIL)
        count = len(found) + len(self.finished())
        # A killed sweep may have asked for part of a batch only, which is completed first.
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
        """Report the rating of a trial, as `Judge.cost` gives it: infinity if it diverged."""
        first, second = cost
        self._study.tell(number, first if first else second)

    def _settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        lists = self._space.lists
        return {k: json.loads(params[k]) if k in lists else params[k] for k in self._kinds}
