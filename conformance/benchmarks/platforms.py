"""Correct candidates under other instruction sets and numbers of threads: `python -m conformance.benchmarks.platforms`.

Each setting is a run of `bert-conformance run` with other environment variables, which torch and its libraries read when they are
loaded. A setting whose instruction set the CPU does not have is listed as not run. The exit code is 1 if a run does not conform or
judges nothing.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from conformance.benchmarks.harness import bullets, parser, publish, table
from conformance.results.file import read_results

PAGE = Path(__file__).with_name("PLATFORMS.md")
CANDIDATES = ("hf-eager", "hf-sdpa", "making-bert", "torch-encoder-fast", "hf-compiled", "hf-onnx")
GOLDENS = ("tiny", "wide", "minilm")
FORMATS = ("float32", "bfloat16", "float16", "float64")
OUTCOMES = ("pass", "skip", "fail", "crash")

ISA, CAPABILITY, BRANCH, THREADS = "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_CBWR", "OMP_NUM_THREADS"
# The environment variables of each setting, and the flag of `torch.cpu.get_capabilities()` without which it equals another one.
SETTINGS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "default": ({}, ""),
    "two threads": ({THREADS: "2"}, ""),
    "oneDNN, AVX-512": ({ISA: "AVX512_CORE"}, "avx512_f"),
    "oneDNN, AVX2": ({ISA: "AVX2"}, "avx2"),
    "oneDNN, SSE4.1": ({ISA: "SSE41"}, "sse4_1"),
    "ATen, AVX-512": ({CAPABILITY: "avx512"}, "avx512_f"),
    "ATen, AVX2": ({CAPABILITY: "avx2"}, "avx2"),
    "ATen, no vectors": ({CAPABILITY: "default"}, "avx2"),
    "MKL, any CPU": ({BRANCH: "COMPATIBLE"}, "sse4_1"),
    "the oldest CPU": ({ISA: "SSE41", CAPABILITY: "default", BRANCH: "COMPATIBLE"}, "sse4_1"),
}


class Run(NamedTuple):
    """The run of a setting: its number of cases by outcome, its failures with their reasons, and its wall time."""

    outcomes: Mapping[str, int]
    failures: Sequence[str]
    seconds: float

    @property
    def conforms(self) -> bool:
        """Whether something was judged, and nothing failed."""
        return self.outcomes.get("pass", 0) > 0 and not self.failures


def lacking(name: str) -> str:
    """Return why a setting cannot be run on this CPU; empty if it can."""
    capabilities: Mapping[str, object] = torch.cpu.get_capabilities()
    needs = SETTINGS[name][1]
    return f"the CPU ({capabilities.get('architecture')}) has no {needs}" if needs and not capabilities.get(needs) else ""


def run(name: str, candidates: Sequence[str], goldens: Sequence[str], formats: Sequence[str]) -> Run:
    """Run the candidates in a process with the environment of a setting, without the variables of the others."""
    others = {key: value for key, value in os.environ.items() if key not in (ISA, CAPABILITY, BRANCH)}
    chosen = {"--golden": goldens, "--dtype": formats}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        # Code compiled for one instruction set gives NaN if another finds it: torch's cache does not record the limit.
        variables = {**others, THREADS: "1", **SETTINGS[name][0], "TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled"}
        options = [word for option, values in chosen.items() for value in values for word in (option, value)]
        command = [sys.executable, "-m", "conformance", "run", *candidates, *options, "-o", folder]
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        file = Path(folder) / "results.jsonl"
        cases = [case.check for case in read_results(file).cases] if file.exists() else []
    failures = [f"{c.implementation} on {c.golden}, {c.dtype}: {c.reason}" for c in cases if c.outcome not in ("pass", "skip")]
    missing = len(candidates) * len(goldens) * len(formats) - len(cases)
    failures += [f"{missing} cases were not reached: {ended.stderr.strip().splitlines()[-1:]}"] * bool(missing)
    return Run(Counter(str(case.outcome) for case in cases), failures, time.perf_counter() - start)


def lines(runs: Mapping[str, Run | None]) -> Iterator[str]:
    """Yield a row for each setting, then what fails and what is not run; a run is None where the CPU lacks the instruction set."""
    yield from table(("setting", "variables", *OUTCOMES, "s"), (_row(name, run) for name, run in runs.items()))
    failures = [f"{name}: {failure}" for name, run in runs.items() if run for failure in run.failures]
    yield from bullets([*failures, *(f"{name} is not run: {lacking(name)}" for name, run in runs.items() if run is None)])


def _row(name: str, run: Run | None) -> tuple[object, ...]:
    variables = " ".join(f"`{key}={value}`" for key, value in SETTINGS[name][0].items())
    if run is None:
        return (name, variables, *["not run"] * (len(OUTCOMES) + 1))
    return (name, variables, *(run.outcomes.get(outcome, 0) for outcome in OUTCOMES), f"{run.seconds:.0f}")


def main() -> int:
    """Print the table; `--write` also saves it."""
    options = parser(__doc__, PAGE, parallel=False)
    options.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="NAME")
    options.add_argument("--goldens", nargs="+", default=GOLDENS, metavar="GOLDEN")
    options.add_argument("--candidates", nargs="+", default=CANDIDATES, metavar="NAME", help="correct ones")
    options.add_argument("--dtypes", nargs="+", default=FORMATS, metavar="FORMAT")
    chosen = options.parse_args()
    cases = (chosen.candidates, chosen.goldens, chosen.dtypes)
    runs = {name: None if lacking(name) else run(name, *cases) for name in chosen.settings}
    publish(PAGE, "Correct candidates under other instruction sets", lines(runs), write=chosen.write)
    return int(not all(each.conforms for each in runs.values() if each))


if __name__ == "__main__":
    sys.exit(main())
