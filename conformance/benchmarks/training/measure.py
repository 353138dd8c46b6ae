"""Verdicts of the training checks on correct and wrong dropouts, training loops and initializations, in each format.

False alarms: the candidates of `implementations`, and the unusual dropouts of `benchmarks.training.correct`. Detection: the
mistakes of `benchmarks.training.wrong`, each planted in a real module.
"""

import argparse
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from conformance.benchmarks.detection.bert import DTYPES
from conformance.benchmarks.training import initial, loops
from conformance.benchmarks.training.correct import CORRECT
from conformance.benchmarks.training.initial import Start
from conformance.benchmarks.training.loops import WrongGradient, WrongLoop
from conformance.benchmarks.training.wrong import WRONG, Wrong
from conformance.checks.check_values import check_values
from conformance.checks.initial_passes import initial_passes
from conformance.checks.optimizer_passes import optimizer_passes, schedule_passes
from conformance.checks.passes import Pass, Passes
from conformance.checks.training_passes import training_passes
from conformance.goldens.golden import Golden
from conformance.implementations.demystified import demystified
from conformance.implementations.hugging_face import hf_eager, hf_sdpa
from conformance.implementations.inner_workings import inner_workings
from conformance.implementations.making_bert import making_bert
from conformance.implementations.torch_encoder import torch_encoder
from conformance.model.gradients import is_gradient
from conformance.model.training import parameter_of
from conformance.oracle.training_run import TrainingRun
from conformance.results.case import Case
from conformance.results.result import Result

RESULTS = Path(__file__).with_name("RESULTS.md")
GOLDEN = "tiny"
IN_USE: tuple[Any, ...] = (hf_eager, hf_sdpa, making_bert, inner_workings, torch_encoder)


def judged(candidate: object, dtype: str, golden: str = GOLDEN) -> Result:
    """Return the result of the check `training-mode`."""
    return check_values(candidate, golden, dtype=dtype, passes=training_passes)


def _alarms(dtype: str) -> tuple[int, int, list[str]]:
    """Return the numbers of judged candidates and activations, and the failures."""
    every = [(candidate, GOLDEN) for candidate in (*IN_USE, *CORRECT.values())] + [(demystified, "sinusoidal")]
    results = [judged(candidate, dtype, golden) for candidate, golden in every]
    activations = sum(verdict.outcome in ("pass", "fail") for result in results for verdict in result.verdicts)
    return len(every), activations, [f"{r.case}: {r.reason or r.outcome}" for r in results if r.outcome != "pass"]


def found_as(wrong: Wrong, dtype: str) -> tuple[bool, bool, bool]:
    """Return whether the mistake is found, whether its first failure is at the right place, and whether it is named there."""
    result = judged(wrong.candidate, dtype)
    first = next((verdict for verdict in result.verdicts if verdict.outcome == "fail"), None)
    if first is None:
        return result.outcome == "fail", False, False
    placed = first.activation == wrong.at
    names = [fault.name for fault in first.local.named] if first.local else []
    return True, placed, placed and (names == [wrong.named] or wrong.named in first.reason)


def passes_of(wrong: WrongLoop) -> Passes:
    """Return the passes of the check that must find the mistake, with few judged parameters (`of_few`).

    For the check `schedule`, only the first pass is returned.
    """
    every = schedule_passes if wrong.by_schedule else optimizer_passes

    def passes(candidate: Any, golden: Golden, case: Case) -> list[Pass]:
        steps = [of_few(one) for one in every(candidate, golden, case) if not one.only_parameter_gradients]
        return steps[:1] if wrong.by_schedule else steps

    return passes


def of_few(one: Pass) -> Pass:
    """Return the pass with at most three judged parameters, unless it selects parameters already.

    They are a matrix and two vectors, one of which is the parameter that a mistake does not train.
    """
    assert isinstance(one.network, TrainingRun)
    names = one.network.judged or (
        "bert.encoder.layer.0.attention.self.query.weight",
        "bert.encoder.layer.1.output.dense.bias",
        "bert.embeddings.LayerNorm.weight",
    )
    stream = [(name, value) for name, value in one.call() if is_gradient(name) or parameter_of(name) in names]
    return replace(one, network=replace(one.network, judged=names), call=partial(iter, stream))


def explained(wrong: WrongLoop, dtype: str) -> Counter[tuple[str, ...]]:
    """Return the number of failing parameters, over all steps, for each set of faults that explains them."""
    result = check_values(wrong.loop.candidate, GOLDEN, dtype=dtype, passes=passes_of(wrong))
    failed = [verdict for verdict in result.verdicts if verdict.outcome == "fail"]
    return Counter(tuple(fault.name for fault in v.local.named) if v.local else () for v in failed)


def is_named(wrong: WrongLoop, found: Counter[tuple[str, ...]]) -> bool:
    """Return whether most failures are explained by the mistake; in some steps other faults have the same effect."""
    return bool(found) and found.most_common(1)[0][0] == (wrong.named,)


def gradients_alone(candidate: Any, golden: Golden, case: Case) -> list[Pass]:
    """Return the passes of a training loop that judge gradients."""
    return [one for one in optimizer_passes(candidate, golden, case) if one.only_parameter_gradients]


def said_of(wrong: WrongGradient, dtype: str) -> str:
    """Return the message on the first failing gradient; empty if none fails."""
    failures = check_values(wrong.loop.candidate, GOLDEN, dtype=dtype, passes=gradients_alone).failures
    return failures[0].reason if failures else ""


def _loops() -> Iterator[str]:
    right, wrong = len(loops.CORRECT), len(loops.WRONG)
    yield f"{right} correct training loops, and {wrong} wrong ones with three parameters, by `optimizer-step` and `schedule`; and"
    yield f"{len(loops.WRONG_GRADIENTS)} whose gradients are wrong:"
    yield ""
    yield "| format | parameters judged | false alarms | found | named | wrong gradients found | said what |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    notes = []
    for dtype in ("float64", "float32", "bfloat16"):
        results = [
            check_values(loop.candidate, GOLDEN, dtype=dtype, passes=passes)
            for loop in loops.CORRECT.values()
            for passes in (optimizer_passes, schedule_passes)
        ]
        judged_there = sum(verdict.outcome in ("pass", "fail") for result in results for verdict in result.verdicts)
        failed = [result.reason for result in results if result.outcome != "pass"]
        found = {name: explained(wrong, dtype) for name, wrong in loops.WRONG.items()}
        named = {name: is_named(loops.WRONG[name], each) for name, each in found.items()}
        notes += failed + [f"{name}, {dtype}: {dict(found[name])}" for name in found if not named[name]]
        said = [(said_of(wrong, dtype), wrong.said) for wrong in loops.WRONG_GRADIENTS.values()]
        of_gradients = (sum(bool(text) for text, _ in said), sum(part in text for text, part in said))
        counts = (judged_there, len(failed), sum(map(bool, found.values())), sum(named.values()), *of_gradients)
        yield f"| {dtype} | {' | '.join(map(str, counts))} |"
    yield ""
    yield from (f"- {note}" for note in notes)


def _starts() -> Iterator[str]:
    yield f"{len(initial.CORRECT)} correct initializations, and {len(initial.WRONG)} wrong ones, by `initialization`:"
    yield ""
    yield "| format | parameters judged | false alarms | found | named |"
    yield "| --- | --- | --- | --- | --- |"
    for dtype in DTYPES:
        results = [check_values(each.candidate, GOLDEN, dtype=dtype, passes=initial_passes) for each in initial.CORRECT.values()]
        judged_there = sum(verdict.outcome in ("pass", "fail") for result in results for verdict in result.verdicts)
        alarms = sum(result.outcome != "pass" for result in results)
        said = [_said_at(wrong, dtype) for wrong in initial.WRONG.values()]
        named = sum(wrong.named in each for wrong, each in zip(initial.WRONG.values(), said, strict=True))
        yield f"| {dtype} | {judged_there} | {alarms} | {sum(map(bool, said))} | {named} |"
    yield ""


def _said_at(wrong: Start, dtype: str) -> str:
    """Return the message on the wrong parameter; empty if it does not fail."""
    failures = check_values(wrong.candidate, GOLDEN, dtype=dtype, passes=initial_passes).failures
    return next((verdict.reason for verdict in failures if parameter_of(verdict.activation) == wrong.at), "")


def _rendered() -> Iterator[str]:
    notes: list[str] = []
    yield f"Correct dropouts on `{GOLDEN}`, and *Demystifying BERT*'s network on `sinusoidal`; forward and backward passes:"
    yield ""
    yield "| format | candidates | activations and gradients judged | false alarms |"
    yield "| --- | --- | --- | --- |"
    for dtype in DTYPES:
        candidates, activations, failed = _alarms(dtype)
        notes += failed
        yield f"| {dtype} | {candidates} | {activations} | {len(failed)} |"
    yield ""
    yield f"{len(WRONG)} mistakes planted by hand:"
    yield ""
    yield "| format | found | placed | named |"
    yield "| --- | --- | --- | --- |"
    for dtype in DTYPES:
        found = {name: found_as(wrong, dtype) for name, wrong in WRONG.items()}
        notes += [f"{name}, {dtype}: found, placed, named: {outcome}" for name, outcome in found.items() if not all(outcome)]
        yield f"| {dtype} | {' | '.join(str(sum(each)) for each in zip(*found.values(), strict=True))} |"
    yield ""
    yield from (f"- {note}" for note in notes)
    yield from _loops()
    yield ""
    yield from _starts()


def main() -> None:
    """Print the tables; `--write` also saves them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"into {RESULTS.name}")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = []
    for line in _rendered():
        print(line, flush=True)
        lines.append(line)
    if arguments.write:
        command = "Made by `python -m conformance.benchmarks.training --write`."
        RESULTS.write_text("\n".join(["# Training mode", "", command, "", *lines]).rstrip() + "\n", "utf-8")
