"""The mutation score: of the mistakes planted, how many are detected, placed and named; and correct variants' false alarms."""

import argparse
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path

from conformance.benchmarks.detection.networks import ARCHITECTURES, network
from conformance.benchmarks.detection.plan import everything
from conformance.benchmarks.detection.trial import Score, Trial, scored
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.checks.run import check_values

TABLE = Path(__file__).with_name("RESULTS.md")
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Alarm:
    """What came of correct candidates: activations judged, and those that failed."""

    dtype: str
    judged: int
    failed: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> None:
    """Run it all and print the table; `--write` puts it beside this file."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.detection")
    parser.add_argument("--pairs", type=int, default=40, help="sets of two mistakes a dtype (default: 40)")
    parser.add_argument("--triples", type=int, default=40, help="sets of three (default: 40)")
    parser.add_argument("--activations", type=int, default=100_000, help="of correct variants to judge (default: 100000)")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--write", action="store_true", help=f"write the table to {TABLE.name}")
    arguments = parser.parse_args(argv)
    start = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(arguments.processes, _one_thread) as pool:
        scores = _scores(pool, arguments.pairs, arguments.triples)
        alarms = _alarms(pool, arguments.activations)
    text = table(scores, alarms)
    print(text)
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    if arguments.write:
        TABLE.write_text(text, "utf-8")


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _scored(numbered: tuple[str, Trial]) -> tuple[str, Score]:
    return numbered[0], scored(numbered[1])


def _scores(pool: Pool, pairs: int, triples: int) -> list[tuple[str, Score]]:
    trials = list(everything(pairs, triples))
    found = []
    for number, score in enumerate(pool.imap(_scored, trials, chunksize=8), 1):
        found.append(score)
        _progress("mistakes", number, len(trials))
        if score[1].counted and not _is_right(*score):
            print(f"{score[0]}: {_rendered(score[1])}", file=sys.stderr, flush=True)
    return found


def _variant(task: tuple[str, str, int, str]) -> Alarm:
    """One correct variant on one network; none judged where it does not support it."""
    variant, architecture, seed, dtype = task
    result = check_values(VARIANTS[variant], network(architecture, seed), dtype=dtype)
    if result.outcome not in ("pass", "fail", "skip"):
        raise RuntimeError(f"{task}: {result.outcome}: {result.reason}")
    judged = [v for v in result.verdicts if v.outcome in ("pass", "fail")]
    return Alarm(
        dtype,
        len(judged),
        tuple(f"{variant}, {architecture} {seed}, {dtype}: {v.activation}" for v in judged if v.outcome == "fail"),
    )


def _alarms(pool: Pool, wanted: int) -> list[Alarm]:
    """Correct variants on ever more seeds until enough activations are judged."""
    found: list[Alarm] = []
    seed = 100
    while sum(a.judged for a in found) < wanted:
        seed += 1
        tasks = [(v, which, seed, dtype) for v in VARIANTS for which in ARCHITECTURES for dtype in DTYPES]
        found += pool.imap_unordered(_variant, tasks, chunksize=8)
        _progress("activations of correct variants", sum(a.judged for a in found), wanted)
    return found


def _progress(what: str, done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{what}: {done} of {of}", end="", file=sys.stderr, flush=True)


def table(scores: Iterable[tuple[str, Score]], alarms: Sequence[Alarm]) -> str:
    """The committed table."""
    by_row: defaultdict[tuple[str, str], list[Score]] = defaultdict(list)
    for kind, score in scores:
        by_row[score.trial.dtype, kind].append(score)
    lines = [
        "# Detection",
        "",
        "Written by `python -m conformance.benchmarks.detection --write`. Mistakes are planted by hand in torch modules, at every",
        "layer of small networks of three architectures and three seeds, and judged as any candidate is. Counted are those whose",
        "expected z, that of a filter made for just that effect, is 12 or more. *Placed*: each fails where it begins, and nothing",
        "else fails. *Named*: the name is reported first, alone or with what cannot be distinguished from it, and no other is.",
        "For those held out no filter exists. *Every layer*: in all at once. *One step*: two mistakes at one and the same step.",
        "",
        "| dtype | mistakes | tried | counted | detected | placed | named | named alone | estimates within error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_row(dtype, kind, found) for (dtype, kind), found in by_row.items()]
    failed = [name for alarm in alarms for name in alarm.failed]
    judged = sum(a.judged for a in alarms)
    lines += ["", f"False alarms: {len(failed)} in {judged} judged activations of {len(VARIANTS)} correct variants", ""]
    lines += [f"- {name}" for name in failed]
    missed = [(kind, s) for (_, kind), found in by_row.items() for s in found if s.counted and not _is_right(kind, s)]
    lines += ["", "Counted, and not detected, placed and (where it has a name) named:", ""] if missed else []
    lines += [f"- {kind}: {_rendered(s)}" for kind, s in missed]
    return "\n".join(lines) + "\n"


def _is_right(kind: str, s: Score) -> bool:
    return s.detected and s.placed and (s.named or kind.startswith("held out"))


def _rendered(s: Score) -> str:
    planted = ", ".join(f"{name} in layer {layer}" for name, layer in s.trial.plants)
    what = "not detected" if not s.detected else "not placed" if not s.placed else f"named: {', '.join(s.rendered)}"
    return f"{planted} ({s.trial.architecture}, seed {s.trial.seed}, {s.trial.dtype}, expected z {s.expected_z:.3g}): {what}"


def _row(dtype: str, kind: str, found: Sequence[Score]) -> str:
    counted = [s for s in found if s.counted]

    def share(what: Iterable[bool]) -> str:
        return f"{100.0 * sum(what) / max(len(counted), 1):.1f} %"

    estimates, within = sum(s.estimates for s in counted), sum(s.within for s in counted)
    named = "-" if kind.startswith("held out") else share(s.named for s in counted)
    alone = "-" if kind.startswith("held out") else share(s.named and s.alone for s in counted)
    numbers = f"{within} of {estimates}" if estimates else "-"
    cells = (
        dtype,
        kind,
        len(found),
        len(counted),
        share(s.detected for s in counted),
        share(s.placed for s in counted),
        named,
        alone,
        numbers,
    )
    return f"| {' | '.join(map(str, cells))} |"
