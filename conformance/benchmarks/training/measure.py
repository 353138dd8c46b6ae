"""Verdicts of the training checks on correct and wrong dropouts, training loops and initializations, in each format.

`python -m conformance.benchmarks.training.measure`: false alarms are those of the candidates of `implementations` and of the
correct candidates of this benchmark.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from conformance.benchmarks.detection.bert import DTYPES
from conformance.benchmarks.harness import parser, publish
from conformance.benchmarks.scored import Part, Score, lines
from conformance.benchmarks.training import dropouts, initial, loops
from conformance.benchmarks.training.dropouts import Dropout
from conformance.benchmarks.training.loops import WrongGradient, WrongLoop
from conformance.checks.check import Request
from conformance.checks.judgement import check_values
from conformance.checks.optimizer_passes import optimizer_step, schedule
from conformance.checks.passes import Pass, Passes
from conformance.checks.training_passes import initialization, training_mode
from conformance.implementations.demystified import demystified
from conformance.implementations.hugging_face import hf_eager, hf_sdpa
from conformance.implementations.inner_workings import inner_workings
from conformance.implementations.making_bert import making_bert
from conformance.implementations.torch_encoder import torch_encoder
from conformance.model.gradients import is_gradient
from conformance.model.training import parameter_of
from conformance.oracle.training_run import TrainingRun
from conformance.results.result import Result

RESULTS = Path(__file__).with_name("RESULTS.md")
GOLDEN = "tiny"
WITH_STEPS = ("float64", "float32", "bfloat16")  # Formats in which steps of an optimizer are judged.
# The correct candidates in training mode, by name, with their goldens.
IN_TRAINING: Mapping[str, tuple[Any, str]] = {
    **{str(each.name): (each, GOLDEN) for each in (hf_eager, hf_sdpa, making_bert, inner_workings, torch_encoder)},
    **{name: (each.candidate, GOLDEN) for name, each in dropouts.CORRECT.items()},
    "demystified": (demystified, "sinusoidal"),
}


def _judge_dropout(name: str, dtype: str) -> list[Result]:
    candidate, golden = IN_TRAINING[name]
    return [check_values(Request.of(candidate, golden, dtype=dtype), training_mode.function)]


def found_as(wrong: Dropout, dtype: str) -> tuple[bool, bool, bool]:
    """Return whether the mistake is detected, whether its first failure is at the right place, and whether it is named there."""
    result = check_values(Request.of(wrong.candidate, GOLDEN, dtype=dtype), training_mode.function)
    if not result.failures:
        return result.outcome == "fail", False, False
    first = result.failures[0]
    placed = first.activation == wrong.at
    names = [fault.name for fault in first.local.named] if first.local else []
    return True, placed, placed and (names == [wrong.named] or wrong.named in first.reason)


def _score_dropout(name: str, dtype: str) -> Score:
    outcome = found_as(dropouts.WRONG[name], dtype)
    return Score(dict(zip(("detected", "placed", "named"), outcome, strict=True)), str(outcome))


def _judge_loop(name: str, dtype: str) -> list[Result]:
    candidate = loops.CORRECT[name].candidate
    return [
        check_values(Request.of(candidate, GOLDEN, dtype=dtype), passes) for passes in (optimizer_step.function, schedule.function)
    ]


def passes_of(wrong: WrongLoop) -> Passes:
    """Return the passes of the check that must detect the mistake, with few judged parameters (`of_few`).

    For the check `schedule`, only the first pass is returned.
    """
    every = schedule.function if wrong.by_schedule else optimizer_step.function

    def passes(request: Request) -> list[Pass]:
        steps = [of_few(each) for each in every(request) if not each.only_parameter_gradients]
        return steps[:1] if wrong.by_schedule else steps

    return passes


def of_few(judged: Pass) -> Pass:
    """Return the pass with at most three judged parameters, unless it selects parameters already.

    They are a matrix and two vectors, one of which is the parameter that a mistake does not train.
    """
    assert isinstance(judged.network, TrainingRun)
    names = judged.network.judged or (
        "bert.encoder.layer.0.attention.self.query.weight",
        "bert.encoder.layer.1.output.dense.bias",
        "bert.embeddings.LayerNorm.weight",
    )
    stream = [(name, value) for name, value in judged.call() if is_gradient(name) or parameter_of(name) in names]
    return replace(judged, network=replace(judged.network, judged=names), call=partial(iter, stream))


def explained(wrong: WrongLoop, dtype: str) -> Counter[tuple[str, ...]]:
    """Return the number of failing parameters, over all steps, for each set of faults that explains them."""
    failures = check_values(Request.of(wrong.loop.candidate, GOLDEN, dtype=dtype), passes_of(wrong)).failures
    return Counter(tuple(fault.name for fault in v.local.named) if v.local else () for v in failures)


def is_named(wrong: WrongLoop, explanations: Counter[tuple[str, ...]]) -> bool:
    """Return whether most failures are explained by the mistake; in some steps other faults have the same effect."""
    return bool(explanations) and explanations.most_common(1)[0][0] == (wrong.named,)


def _score_loop(name: str, dtype: str) -> Score:
    wrong = loops.WRONG[name]
    explanations = explained(wrong, dtype)
    return Score({"detected": bool(explanations), "named": is_named(wrong, explanations)}, str(dict(explanations)))


def gradients_alone(request: Request) -> list[Pass]:
    """Return the passes of a training loop that judge gradients."""
    return [each for each in optimizer_step.function(request) if each.only_parameter_gradients]


def _judge_gradients(name: str, dtype: str) -> list[Result]:
    return [check_values(Request.of(loops.CORRECT[name].candidate, GOLDEN, dtype=dtype), gradients_alone)]


def said_of(wrong: WrongGradient, dtype: str) -> str:
    """Return the message on the first failing gradient; empty if none fails."""
    failures = check_values(Request.of(wrong.loop.candidate, GOLDEN, dtype=dtype), gradients_alone).failures
    return failures[0].reason if failures else ""


def _score_gradients(name: str, dtype: str) -> Score:
    wrong = loops.WRONG_GRADIENTS[name]
    said = said_of(wrong, dtype)
    return Score({"detected": bool(said), "described": wrong.said in said}, said)


def _judge_start(name: str, dtype: str) -> list[Result]:
    return [check_values(Request.of(initial.CORRECT[name].candidate, GOLDEN, dtype=dtype), initialization.function)]


def _score_start(name: str, dtype: str) -> Score:
    wrong = initial.WRONG[name]
    failures = check_values(Request.of(wrong.candidate, GOLDEN, dtype=dtype), initialization.function).failures
    said = next((verdict.reason for verdict in failures if parameter_of(verdict.activation) == wrong.at), "")
    return Score({"detected": bool(said), "named": wrong.named in said}, said)


PARTS: Mapping[str, Part] = {
    "dropouts": Part(
        f"Correct dropouts, on `{GOLDEN}`, and *Demystifying BERT*'s network, on `sinusoidal`; forward and backward passes",
        dict.fromkeys(IN_TRAINING, DTYPES),
        _judge_dropout,
        "Wrong dropouts",
        list(dropouts.WRONG),
        _score_dropout,
    ),
    "loops": Part(
        "Correct training loops, by `optimizer-step` and `schedule`",
        dict.fromkeys(loops.CORRECT, WITH_STEPS),
        _judge_loop,
        "Wrong training loops, with three parameters",
        list(loops.WRONG),
        _score_loop,
    ),
    "gradients": Part(
        "Gradients of correct training loops, by `optimizer-step`",
        dict.fromkeys(loops.CORRECT, WITH_STEPS),
        _judge_gradients,
        "Training loops whose gradients are wrong",
        list(loops.WRONG_GRADIENTS),
        _score_gradients,
    ),
    "initializations": Part(
        "Correct initializations, by `initialization`",
        dict.fromkeys(initial.CORRECT, DTYPES),
        _judge_start,
        "Wrong initializations",
        list(initial.WRONG),
        _score_start,
    ),
}


def _every(parts: list[str], formats: list[str], jobs: int) -> Iterator[str]:
    for name in parts:
        correct_in = next(iter(PARTS[name].candidates.values()))
        yield from lines(PARTS[name], [dtype for dtype in formats if dtype in correct_in], jobs)


def main() -> None:
    """Print the tables; `--write` also saves them."""
    options = parser(__doc__, RESULTS)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    options.add_argument("--formats", nargs="+", choices=DTYPES, default=list(DTYPES), help="default: all")
    chosen = options.parse_args()
    publish(RESULTS, "Training", _every(chosen.parts, chosen.formats, chosen.jobs), write=chosen.write)


if __name__ == "__main__":
    main()
