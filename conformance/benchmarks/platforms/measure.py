"""Run each lane in a separate process, and collect the results in one table.

A candidate's outputs are digested first. If they have the same bits as in an earlier lane, the verdict of that lane is used. A lane
whose instruction set the CPU does not support is not run, and the table says so. The exit code is 1 if a correct candidate fails or
if nothing was judged.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import torch

from conformance.benchmarks.platforms.case import Ran
from conformance.benchmarks.platforms.found import PASSED, Found, Judged
from conformance.benchmarks.platforms.lanes import LANES, Lane, environment, lacking
from conformance.benchmarks.platforms.table import COLUMNS, lines

CANDIDATES = ("hf-eager", "hf-sdpa", "making-bert", "torch-encoder-fast", "hf-compiled", "hf-onnx")
GOLDENS = ("tiny", "wide", "minilm")
FORMATS = ("float32", "bfloat16", "float16", "float64")
RESULTS = Path(__file__).with_name("RESULTS.md")
Case = tuple[str, str, str]


def measured(lanes: Sequence[Lane], cases: Sequence[Case]) -> Iterator[Found]:
    """Yield the result of each lane, in order; the verdicts of earlier lanes are reused for the same bits."""
    judged, capabilities = Judged(), torch.cpu.get_capabilities()
    for lane in lanes:
        why = lacking(lane, capabilities)
        found = Found(lane, lacking=why) if why else in_a_process(lane, cases, judged)
        for ran in found.ran:
            judged.keep(lane, ran)
        yield found


def in_a_process(lane: Lane, cases: Sequence[Case], judged: Judged) -> Found:
    """Run a lane's cases in a separate process.

    Cases that were not reached because the process ended count as crashes.
    """
    order = {"lane": lane.name, "cases": [(case, [vars(ran) for ran in judged.of(*case)]) for case in cases]}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        command = [sys.executable, "-m", "conformance.benchmarks.platforms.child", str(out)]
        # Code compiled for one instruction set gives NaN if another finds it: torch's cache does not record the limit.
        variables = {**environment(lane), "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "compiled")}
        ended = subprocess.run(command, input=json.dumps(order), text=True, env=variables, capture_output=True, check=False)
        lines_read = [json.loads(line) for line in out.read_text("utf-8").splitlines()] if out.exists() else []
    header, ran = (lines_read[0], [Ran(**one) for one in lines_read[1:]]) if lines_read else ({}, [])
    why = f"the lane's process ended with {ended.returncode}: {ended.stderr.strip().splitlines()[-1:]}"
    return Found(lane, "", **header, ran=(*ran, *(Ran(*case, "crash", why) for case in cases[len(ran) :])))


def machine(capabilities: Mapping[str, object]) -> Iterator[str]:
    """Yield a description of the machine that the lanes ran on."""
    flags = sorted(name for name, value in capabilities.items() if value is True)
    yield f"CPU: {capabilities.get('cpu_name') or 'unknown'}, {capabilities.get('architecture', 'unknown')}; {' '.join(flags)}."
    yield f"torch {torch.__version__}, Python {sys.version.split()[0]}."


def holds(found: Sequence[Found]) -> bool:
    """Return whether no case is wrong and at least one was judged."""
    return all(one.holds for one in found) and any(one.counts[PASSED] for one in found)


def main() -> None:
    """Print the tables; `--write` also saves them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", nargs="+", choices=LANES, default=list(LANES), metavar="LANE", help=", ".join(LANES))
    parser.add_argument("--goldens", nargs="+", default=GOLDENS, metavar="GOLDEN")
    parser.add_argument("--candidates", nargs="+", default=CANDIDATES, metavar="NAME", help="correct ones")
    parser.add_argument("--dtypes", nargs="+", default=FORMATS, metavar="FORMAT")
    parser.add_argument("--write", action="store_true", help=f"into {RESULTS.name}")
    chosen = parser.parse_args()
    cases = list(product(chosen.candidates, chosen.goldens, chosen.dtypes))
    found = []
    for one in measured([LANES[name] for name in chosen.lanes], cases):
        found.append(one)
        counts = ", ".join(f"{one.counts[kind]} {kind}" for kind in COLUMNS if one.counts[kind])
        print(f"{one.lane.name}: {one.lacking or counts}", file=sys.stderr, flush=True)
    text = list(lines(found, list(machine(torch.cpu.get_capabilities()))))
    print("\n".join(text))
    if chosen.write:
        command = f"Made by `python -m conformance.benchmarks.platforms {' '.join(sys.argv[1:])}`."
        RESULTS.write_text("\n".join(["# Correct candidates under other instruction sets", "", command, "", *text, ""]), "utf-8")
    if not holds(found):
        sys.exit(1)
