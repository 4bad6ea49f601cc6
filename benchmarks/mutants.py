"""Mutate the methods and see whether `undrift verify` notices: a mutation score.

    python -m benchmarks.mutants                    # every method file, resumed where it stopped
    python -m benchmarks.mutants feddyn scaffold    # some files
    python -m benchmarks.mutants --list feddyn      # the mutants, without judging them
    python -m benchmarks.mutants --write benchmarks/mutants.json    # the numbers of the guide
    python -m tools.pages.mutants docs/verify.md                    # its table, from the numbers

A mutant is a method file with one systematic mistake: a sign, a dropped term, a factor, swapped
weights, N for |S|, a stale state, a wrong centre. It is killed if a fact of `undrift verify` fails;
the facts are measured in a fixed order until one fails. Mutants that compute the same as the
original are listed in `equivalent_mutants.toml` with the reason. A mutant whose code raises an
error is not counted, since any run would notice it.
"""

from __future__ import annotations

import argparse
import json
import os
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.mutant_runs import BREAKS, SURVIVES, Judged, facts_digest, judge, read_log
from benchmarks.mutations import METHODS, Mutant, concerns, mutants_of

FOLDERS = (
    "averaging",
    "control_variates",
    "primal_dual",
    "asynchronous",
    "personal",
    "common",
)
EQUIVALENT_ONE = "equivalent"
"""The verdict on a survivor that is listed as equivalent."""
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
LOG = Path(".mutants") / "verdicts.jsonl"


def files(names: Sequence[str] = ()) -> list[Path]:
    """The method files of these names; all that `undrift verify` has a subject for if none."""
    found = [path for folder in FOLDERS for path in sorted((METHODS / folder).glob("*.py"))]
    found = [path for path in found if path.name != "__init__.py"]
    return [path for path in found if not names or path.stem in names]


def verified(mutants: Sequence[Mutant]) -> list[Mutant]:
    """The mutants of files that at least one subject of `undrift verify` uses."""
    from undrift.verify.subjects import baselines, ours

    methods = [subject.method for subject in (*ours(), *baselines())]
    modules = {mutant.module for mutant in mutants}
    used = {module for module in modules if any(concerns(module, method) for method in methods)}
    for module in sorted(modules - used):
        print(f"{module}: not verified, since no subject of undrift verify uses it")
    return [mutant for mutant in mutants if mutant.module in used]


def equivalents() -> dict[str, str]:
    """The names of mutants that compute the same as the original, and why."""
    table = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))
    return {name: each["why"] for each in table["equivalent"] for name in each["mutants"]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge all mutants and print the score."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="method files, such as feddyn; all if left out")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--again", action="store_true", help="forget the verdicts of earlier runs")
    parser.add_argument("--log", type=Path, default=LOG, help=f"kept verdicts (default: {LOG})")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--write", type=Path, help="write the result, for the page of the guide")
    options = parser.parse_args(arguments)
    mutants = [mutant for path in files(options.names) for mutant in mutants_of(path)]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.file}:{mutant.line}: {mutant.place}: {mutant.words}")
        return
    mutants = verified(mutants)
    if options.again:
        options.log.unlink(missing_ok=True)
    verdicts = judged(mutants, options.log, options.processes, quiet=options.json)
    result = summary(mutants, verdicts, equivalents())
    if options.write is not None:
        write(options.write, result)
    text = json.dumps(result, indent=1, ensure_ascii=False)
    print(text if options.json else "\n".join(report(result)))
    if result["survivors"] or result["wrongly equivalent"]:
        raise SystemExit(1)


def judged(
    mutants: Sequence[Mutant], log: Path, processes: int, quiet: bool = False
) -> dict[str, Judged]:
    """The verdict on every mutant; those of earlier runs are kept.

    A mutant is judged again if its file has changed, or if it survived and the facts have changed.
    """
    facts, known = facts_digest(), read_log(log)

    def settled(mutant: Mutant) -> bool:
        old = known.get(mutant.name)
        if old is None or old.digest != mutant.digest:
            return False
        return old.verdict != SURVIVES or old.facts == facts

    waiting = [mutant for mutant in mutants if not settled(mutant)]
    for number, verdict in enumerate(judge(waiting, log, processes), 1):
        known[verdict.name] = verdict
        if not quiet and verdict.verdict == SURVIVES:
            print(f"survives ({number} of {len(waiting)}): {verdict.name}", flush=True)
    return {mutant.name: known[mutant.name] for mutant in mutants}


def summary(
    mutants: Sequence[Mutant], verdicts: Mapping[str, Judged], reasons: Mapping[str, str]
) -> dict[str, Any]:
    """How many mutants of every file each fact kills, and the survivors."""
    by_file: dict[str, Counter[str]] = {}
    survivors, wrong = [], []
    for mutant in mutants:
        verdict = verdicts[mutant.name].verdict
        if verdict == SURVIVES and mutant.name in reasons:
            verdict = EQUIVALENT_ONE
        elif verdict == SURVIVES:
            survivors.append(f"{mutant.name} (line {mutant.line})")
        elif mutant.name in reasons:
            wrong.append(f"{mutant.name}: {verdict}")
        by_file.setdefault(mutant.file, Counter())[verdict] += 1
    files = {file: dict(sorted(found.items())) for file, found in by_file.items()}
    return totals(files) | {"survivors": survivors, "wrongly equivalent": wrong}


def totals(files: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """The score over files, from the number of mutants of each verdict."""
    total: Counter[str] = sum((Counter(found) for found in files.values()), Counter())
    valid = sum(total.values()) - total[BREAKS] - total[EQUIVALENT_ONE]
    return {
        "killed": valid - total[SURVIVES],
        "of": valid,
        "equivalent": total[EQUIVALENT_ONE],
        "breaks": total[BREAKS],
        "files": dict(files),
    }


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Write the result; files that it does not have keep their entries."""
    files = json.loads(path.read_text(encoding="utf-8"))["files"] if path.exists() else {}
    text = json.dumps(totals(files | result["files"]), indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def report(result: Mapping[str, Any]) -> list[str]:
    """The result as lines of text."""
    lines = []
    for file, found in result["files"].items():
        counts = sorted(found.items(), key=lambda item: -item[1])
        lines.append(f"{file:32} " + ", ".join(f"{name} {count}" for name, count in counts))
    lines.append("")
    lines += [f"survives: {name}" for name in result["survivors"]]
    lines += [f"listed as equivalent, but: {name}" for name in result["wrongly equivalent"]]
    lines.append(
        f"{result['killed']} of {result['of']} mutants killed, {result['equivalent']} equivalent, "
        f"{result['breaks']} not counted because their code raises an error"
    )
    return lines


if __name__ == "__main__":
    main()
