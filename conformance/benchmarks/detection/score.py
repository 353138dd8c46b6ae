"""The mutation score: how many of the planted mistakes are detected, located and named."""

import argparse
import multiprocessing
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from multiprocessing.pool import Pool
from pathlib import Path

from conformance.benchmarks.detection.plan import DTYPES, everything, of_goldens, of_mistakes
from conformance.benchmarks.detection.planted import PLANTS
from conformance.benchmarks.detection.trial import Score, Trial, least_expected_z, scored
from conformance.goldens.golden import load_golden

TABLE, TABLE_OF_GOLDENS = Path(__file__).with_name("RESULTS.md"), Path(__file__).with_name("GOLDENS.md")

_ON_NETWORKS = """# Detection

Written by `python -m conformance.benchmarks.detection --pairs {pairs} --triples {triples} --write`. Mistakes are planted by
hand in torch modules, at every layer of small networks of three architectures and three seeds, and judged as any
candidate is. Counted are those whose expected z, that of a filter made for just that effect, is 12 or more. *Placed*:
each fails where it begins, and nothing else fails. *Named*: the name is reported first, alone or with what cannot be
distinguished from it, and no other is.
For those held out no filter exists. *Every layer*: in all at once. *One step*: two mistakes at one and the same step.
"""
_ON_GOLDENS = """# Detection in the goldens' networks

Written by `python -m conformance.benchmarks.detection --golden {goldens} --dtype {dtypes} --write`. Every mistake of
`RESULTS.md` that the golden's network can have, in a layer selected by hash, and in all layers at once. The columns are those of
`RESULTS.md`. A mistake counts if the expected z of its own filter is 12 or more under the usual arithmetic; for each that was
missed, the expected z under the widest legal arithmetic is given as well.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run all trials, or those of some mistakes, and print the table; `--write` saves it beside this file."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.detection")
    parser.add_argument("--pairs", type=int, default=40, help="sets of two mistakes a dtype (default: 40)")
    parser.add_argument("--triples", type=int, default=40, help="sets of three (default: 40)")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--write", action="store_true", help="write the table beside this file")
    parser.add_argument("--only", nargs="+", choices=list(PLANTS), metavar="NAME", help="these mistakes alone, in every format")
    parser.add_argument("--golden", nargs="+", metavar="NAME", help="every mistake alone, in the networks of these goldens")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, help="with --golden: the formats (default: each)")
    arguments = parser.parse_args(argv)
    if arguments.only and (arguments.write or arguments.golden):
        parser.error("--only prints its table and uses the generated networks: leave --write and --golden out")
    if arguments.dtype and not arguments.golden:
        parser.error("--dtype selects the formats of --golden: give both")
    several = [name for name in arguments.golden or () if len(load_golden(name).batches) != 1]
    if several:
        parser.error(f"mistakes are planted on one batch, and these goldens have several: {', '.join(several)}")
    if arguments.golden:
        dtypes = arguments.dtype or DTYPES
        trials, file = list(of_goldens(arguments.golden, dtypes)), TABLE_OF_GOLDENS
        heading = _ON_GOLDENS.format(goldens=" ".join(arguments.golden), dtypes=" ".join(dtypes))
    else:
        trials = list(of_mistakes(arguments.only) if arguments.only else everything(arguments.pairs, arguments.triples))
        file, heading = TABLE, _ON_NETWORKS.format(pairs=arguments.pairs, triples=arguments.triples)
    start = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(arguments.processes, one_thread) as pool:
        scores = _scores(pool, trials)
    text = table(scores, heading)
    print(text)
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    if arguments.write:
        file.write_text(text, "utf-8")


def one_thread() -> None:
    """Limit torch to one thread, since the processes share the cores."""
    import torch

    torch.set_num_threads(1)


def _scored(numbered: tuple[str, Trial]) -> tuple[str, Score]:
    return numbered[0], scored(numbered[1])


def _scores(pool: Pool, trials: Sequence[tuple[str, Trial]]) -> list[tuple[str, Score]]:
    found = []
    for number, score in enumerate(pool.imap(_scored, trials, chunksize=8), 1):
        found.append(score)
        _progress("mistakes", number, len(trials))
        if score[1].counted and not _is_right(*score):
            print(f"{score[0]}: {_rendered(score[1])}", file=sys.stderr, flush=True)
    return found


def _progress(what: str, done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{what}: {done} of {of}", end="", file=sys.stderr, flush=True)


def table(scores: Iterable[tuple[str, Score]], heading: str) -> str:
    """Return the committed table, in Markdown."""
    by_row: defaultdict[tuple[str, str], list[Score]] = defaultdict(list)
    for kind, score in scores:
        by_row[score.trial.dtype, kind].append(score)
    lines = [
        heading,
        "| dtype | mistakes | tried | counted | detected | placed | named | named alone | estimates within error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_row(dtype, kind, found) for (dtype, kind), found in by_row.items()]
    missed = [(kind, s) for (_, kind), found in by_row.items() for s in found if s.counted and not _is_right(kind, s)]
    lines += ["", "Counted, and not detected, placed and (where it has a name) named:", ""] if missed else []
    lines += [f"- {kind}: {_rendered(s)}" for kind, s in missed]
    return "\n".join(lines) + "\n"


def _is_right(kind: str, s: Score) -> bool:
    return s.detected and s.placed and (s.named or kind.startswith("held out"))


def _rendered(s: Score) -> str:
    counts, layers = Counter(name for name, _ in s.trial.plants), dict(s.trial.plants)
    planted = ", ".join(f"{n} in {count} layers" if count > 1 else f"{n} in layer {layers[n]}" for n, count in counts.items())
    what = "not detected" if not s.detected else "not placed" if not s.placed else f"named: {', '.join(s.rendered)}"
    expected = f"expected z {s.expected_z:.3g}, under the widest legal arithmetic {least_expected_z(s.trial):.3g}"
    return f"{planted} ({s.trial.architecture}, seed {s.trial.seed}, {s.trial.dtype}, {expected}): {what}"


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
