"""Correct candidates under the settings of this machine: `python -m conformance.benchmarks.platforms.measure`.

Each lane runs in a separate process. A lane whose instruction set the CPU does not support is not run, and the table says so. The
exit code is 1 if a correct candidate fails or if nothing was judged.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

from conformance.benchmarks.harness import parser, publish, table
from conformance.benchmarks.platforms.case import Ran
from conformance.benchmarks.platforms.lanes import LANES, PLAIN, Lane, environment, lacking

CANDIDATES = ("hf-eager", "hf-sdpa", "making-bert", "torch-encoder-fast", "hf-compiled", "hf-onnx")
GOLDENS = ("tiny", "wide", "minilm")
FORMATS = ("float32", "bfloat16", "float16", "float64")
RESULTS = Path(__file__).with_name("RESULTS.md")
Case = tuple[str, str, str]

PASSED, REDUCED, UNSUPPORTED, ALARM = KINDS = ("passed", "reduced", "unsupported", "false alarm")
"""The kinds of cases, in order: a pass; a failure recognized as reduced precision, where precision is reduced; a skip; and a
failure of a correct candidate."""


@dataclass(frozen=True)
class LaneResult:
    """The result of a lane.

    Attributes:
        lane: the lane.
        lacking: why it was not run; empty if it was.
        capability: instruction set of torch's own kernels.
        reduces: whether float32 products were computed in less than float32 precision.
        notes: sentences on how the machine's functions exceed the table.
        ran: the cases, in order.
    """

    lane: Lane
    lacking: str = ""
    capability: str = ""
    reduces: bool = False
    notes: Sequence[str] = ()
    ran: tuple[Ran, ...] = ()

    def kind(self, ran: Ran) -> str:
        """Return the kind of a case."""
        if ran.outcome in ("pass", "skip"):
            return PASSED if ran.outcome == "pass" else UNSUPPORTED
        lowered = self.lane.precision != PLAIN and self.reduces and ran.dtype == "float32"
        return REDUCED if lowered and ran.reduced else ALARM

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of cases of each kind."""
        return Counter(self.kind(ran) for ran in self.ran)


def measured(lane: Lane, cases: Sequence[Case]) -> LaneResult:
    """Return the result of a lane, run in a separate process if the CPU supports it.

    Cases that were not reached because the process ended count as crashes.
    """
    why = lacking(lane, torch.cpu.get_capabilities())
    if why:
        return LaneResult(lane, why)
    command = [sys.executable, "-m", "conformance.benchmarks.platforms.case"]
    with tempfile.TemporaryDirectory() as compiled:
        # Code compiled for one instruction set gives NaN if another finds it: torch's cache does not record the limit.
        variables = {**environment(lane), "TORCHINDUCTOR_CACHE_DIR": compiled}
        order = json.dumps({"lane": lane.name, "cases": cases})
        ended = subprocess.run(command, input=order, text=True, env=variables, capture_output=True, check=False)
    header, *records = [json.loads(line) for line in ended.stdout.splitlines()] or [{}]
    why = f"the lane's process ended with {ended.returncode}: {ended.stderr.strip().splitlines()[-1:]}"
    crashed = (Ran(*case, "crash", why) for case in cases[len(records) :])
    return LaneResult(lane, **header, ran=(*(Ran(**record) for record in records), *crashed))


def holds(results: Sequence[LaneResult]) -> bool:
    """Return whether no case is wrong and at least one was judged."""
    counts = sum((Counter(each.counts) for each in results), Counter[str]())
    return counts[PASSED] > 0 and not counts[ALARM]


def lines(results: Sequence[LaneResult]) -> Iterator[str]:
    """Yield one row per lane, one row per candidate and format, and the reasons."""
    yield from table(("lane", "what is set", "torch's kernels", "cases", *KINDS, "seconds"), map(_row, results))
    yield ""
    goldens = list(dict.fromkeys(ran.golden for each in results for ran in each.ran))
    yield from table(("candidate", "format", *(f"`{golden}`" for golden in goldens)), _by_candidate(results, goldens))
    yield ""
    yield from (f"- {each.lane.name} is not run: {each.lacking}" for each in results if each.lacking)
    yield from (f"- {each.lane.name}, of the machine: {note}" for each in results for note in each.notes)
    yield from _reasons(results)


def _row(result: LaneResult) -> tuple[object, ...]:
    if result.lacking:
        return (result.lane.name, result.lane.setting, "not run", *[""] * (len(KINDS) + 2))
    counts = (result.counts[kind] for kind in KINDS)
    seconds = f"{sum(ran.seconds for ran in result.ran):.0f}"
    return (result.lane.name, result.lane.setting, result.capability, len(result.ran), *counts, seconds)


def _by_candidate(results: Sequence[LaneResult], goldens: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each candidate and format: for each golden, the lanes of each kind, or the kind of all lanes."""
    kinds: dict[tuple[str, str], dict[str, dict[str, list[str]]]] = {}
    for each in results:
        for ran in each.ran:
            of_case = kinds.setdefault((ran.candidate, ran.dtype), {}).setdefault(ran.golden, {})
            of_case.setdefault(each.kind(ran), []).append(each.lane.name)
    for case, by_golden in kinds.items():
        yield (*case, *(_cell(by_golden.get(golden, {})) for golden in goldens))


def _cell(lanes: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{kind}: {', '.join(names)}" if len(lanes) > 1 else kind for kind, names in lanes.items())


def _reasons(results: Sequence[LaneResult]) -> Iterator[str]:
    """Yield each reason of an unsupported case or a false alarm once, with its cases and lanes."""
    where: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for each in results:
        for ran in each.ran:
            if each.kind(ran) in (UNSUPPORTED, ALARM):
                cases, lanes = where.setdefault(f"{each.kind(ran)}: {ran.reason.splitlines()[0]}", ({}, {}))
                cases[ran.case] = lanes[each.lane.name] = None
    yield from (f"- {reason} ({', '.join(cases)}; {len(lanes)} lanes)" for reason, (cases, lanes) in where.items())


def main() -> int:
    """Print the tables; `--write` also saves them."""
    options = parser(__doc__, RESULTS, parallel=False)
    options.add_argument("--lanes", nargs="+", choices=LANES, default=list(LANES), metavar="LANE", help=", ".join(LANES))
    options.add_argument("--goldens", nargs="+", default=GOLDENS, metavar="GOLDEN")
    options.add_argument("--candidates", nargs="+", default=CANDIDATES, metavar="NAME", help="correct ones")
    options.add_argument("--dtypes", nargs="+", default=FORMATS, metavar="FORMAT")
    chosen = options.parse_args()
    results = []
    for name in chosen.lanes:
        each = measured(LANES[name], list(product(chosen.candidates, chosen.goldens, chosen.dtypes)))
        results.append(each)
        print(f"{each.lane.name}: {each.lacking or dict(each.counts)}", file=sys.stderr, flush=True)
    publish(RESULTS, "Correct candidates under other instruction sets", lines(results), write=chosen.write)
    return int(not holds(results))


if __name__ == "__main__":
    sys.exit(main())
