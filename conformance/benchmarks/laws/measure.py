"""The false-alarm rate of the laws on correct candidates, and the suite's cost relative to the candidate.

False alarms: every law that compares two runs, or a run and the oracle, to within rounding, on every correct variant, in float32
and bfloat16 if it is correct in them. The examples of a variant are shared equally among laws and formats. Cost: all checks of one
candidate on `tiny`, with twenty examples each, on one thread. The suite's own seconds are divided by the candidate's seconds, in
which its code ran, including hooks, and by those of an equal number of plain forward passes of the same module without hooks.
"""

import argparse
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from conformance.benchmarks.detection.variant import Variant
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.checks.catalogue import CHECKS
from conformance.checks.run_check import run_check
from conformance.checks.search.plan import EXAMPLES, Plan
from conformance.goldens.golden import load_golden
from conformance.implementations.hugging_face import hf_eager
from conformance.model.batch import Batch

LAWS = (
    "generated-batches",
    "padding-length",
    "padding-content",
    "masked-row",
    "batching",
    "mask-omitted",
    "token-types-omitted",
    "mask-dtype",
)
FORMATS = ("float32", "bfloat16")
GOLDEN = "tiny"
RESULTS = Path(__file__).with_name("RESULTS.md")

# Variants that pad with zeros, or leave padding out, are included, since padded rows are not compared. Variants that show nothing
# of the golden's architecture are left out.
CORRECT: Mapping[str, Variant] = {
    name: variant for name, variant in VARIANTS.items() if variant.fits(load_golden(GOLDEN).checkpoint.architecture)
}


@dataclass(frozen=True)
class Alarms:
    """The number of examples tried, the variants that failed, and the largest error relative to its limit, of a law in a format."""

    tried: int
    failed: tuple[str, ...]
    worst: float


def alarms(law: str, dtype: str, examples: int, seed: int) -> Alarms:
    """Return the false alarms of one law over every correct variant."""
    tried, failed, worst = 0, [], 0.0
    for name, variant in CORRECT.items():
        if dtype not in variant.dtypes:
            continue
        shared = examples // (len(LAWS) * sum(d in variant.dtypes for d in FORMATS))
        result = run_check(CHECKS[law], variant, GOLDEN, "cpu", dtype, 1, Plan(max(shared, 1), seed))
        assert result.searched
        tried, worst = tried + result.searched.tried, max(worst, result.searched.worst)
        if result.outcome != "pass":
            failed.append(f"{name}: {result.reason}")
    return Alarms(tried, tuple(failed), worst)


def cost() -> tuple[float, float, float]:
    """Return the seconds of the suite itself, of the candidate, and of an equal number of plain forward passes."""
    own = candidate = 0.0
    for check in CHECKS.values():  # Warm up: loading that happens once per process is not part of a check's cost.
        run_check(check, "hf-eager", GOLDEN, "cpu", "float32", 1, Plan(1))
    tried = 0
    for check in CHECKS.values():
        start = time.perf_counter()
        result = run_check(check, "hf-eager", GOLDEN, "cpu", "float32", 1, Plan(EXAMPLES))
        seconds, theirs = time.perf_counter() - start, result.candidate_seconds
        tried += result.searched.tried if result.searched else 0
        own, candidate = own + seconds - theirs, candidate + theirs
    return own, candidate, tried * _plain()


def _plain() -> float:
    """Return the seconds of a forward pass of a typical batch, without hooks."""
    model = hf_eager.module(load_golden(GOLDEN).checkpoint)
    batch = Batch.of({"input_ids": [list(range(8))] * 2}).on("cpu").filled()
    start, times = time.perf_counter(), 100
    with torch.no_grad():
        for _ in range(times):
            model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    return (time.perf_counter() - start) / times


def _rendered(examples: int, seed: int) -> Iterator[str]:
    yield f"{len(CORRECT)} correct candidates on `{GOLDEN}`, {examples} examples each, seed {seed}."
    yield ""
    yield "| law | format | examples | false alarms | largest error, of its limit |"
    yield "| --- | --- | --- | --- | --- |"
    failed: list[str] = []
    for law in LAWS:
        for dtype in FORMATS:
            found = alarms(law, dtype, examples, seed)
            failed += [f"{law}, {dtype}, {one}" for one in found.failed]
            yield f"| {law} | {dtype} | {found.tried} | {len(found.failed)} | {found.worst:.2f} |"
    yield ""
    yield from (f"- {one}" for one in failed)
    own, candidate, plain = cost()
    yield f"All checks of `hf-eager` on `{GOLDEN}`, {EXAMPLES} examples each: the suite itself takes {own / candidate:.1f} times"
    yield f"as long as the candidate ({own:.1f} s, {candidate:.1f} s), whose hooks and copies count as its own; plain forward"
    yield f"passes, one an example, take {plain:.1f} s."


def main() -> None:
    """Print the figures; `--write` also saves them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1000, help="a variant (default: 1000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cost", action="store_true", help="the cost alone")
    parser.add_argument("--write", action="store_true", help=f"into {RESULTS.name}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if arguments.cost:
        print("own {:.1f} s, candidate {:.1f} s, plain {:.1f} s".format(*cost()))
        return
    lines = []
    for line in _rendered(arguments.examples, arguments.seed):
        print(line, flush=True)
        lines.append(line)
    if arguments.write:
        options = f"--examples {arguments.examples} --seed {arguments.seed} --write"
        command = f"Made by `python -m conformance.benchmarks.laws {options}`."
        RESULTS.write_text("\n".join(["# The laws on correct candidates", "", command, "", *lines, ""]), "utf-8")
