"""Candidates that hide layers: a mistake in all of them is named with its places, and the mistakes excluded by a pass include
theirs."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance import Result, check, load_golden
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.equations import Change
from conformance.benchmarks.detection.networks import network
from conformance.diagnosis.unexposed_layers import SEARCHES, UnexposedLayersSearch
from conformance.judge.observation import Observation
from conformance.model.activations import last_hidden
from conformance.model.checkpoint import Checkpoint, rounded_weights
from conformance.numerics.arithmetic import hypotheses, representative_hypothesis
from conformance.oracle import Network
from conformance.results.to_records import excludes

LAST = "encoder.layer.1.output.LayerNorm"
NORMS = {
    "embeddings.LayerNorm",
    *(f"encoder.layer.{i}.{part}.LayerNorm" for i in (0, 1) for part in ("attention.output", "output")),
}
SCORES = {f"encoder.layer.{i}.attention.self.scores" for i in (0, 1)}
GELUS = {f"encoder.layer.{i}.intermediate.intermediate_act_fn" for i in (0, 1)}


EPSILON, TANH_GELU = changed("norms", "right(eps=1e-5)"), changed("functions", "tanh_gelu(x)")
UNBIASED = changed("norms", "centred(x) * torch.rsqrt(x.var(-1, keepdim=True) + eps) * weight + bias")
TANH_GELU_IN_LAYER_0 = changed("activated", "tanh_gelu(x)", layers=(0,))
NO_TOKEN_TYPES, NO_POSITIONS = changed("type", "0 * right()"), changed("position", "0 * right()")
EVERYWHERE: dict[str, tuple[Change, set[str], tuple[str, ...]]] = {
    "epsilon": (EPSILON, NORMS, ("float32", "bfloat16", "float16")),
    "norm-variance": (UNBIASED, NORMS, ("float32", "bfloat16", "float16")),
    "scale-missing": (changed("scores", "q @ k.mT * 0.35"), SCORES, ("float32", "float16")),
    "scores-transposed": (changed("scores", "k @ q.mT * d**-0.5"), SCORES, ("float32", "bfloat16", "float16")),
    "gelu-variant": (TANH_GELU, GELUS, ("float32",)),
}


def judged(*plants: Change, golden: str = "tiny", dtype: str = "float32", layers: tuple[int, ...] = (1,)) -> Result:
    shown = {f"encoder.layer.{layer}.output.LayerNorm" for layer in layers}
    return check(Candidate(plants, exposes=shown.__contains__), golden, dtype=dtype)


def named(result: Result) -> list[set[tuple[str, str]]]:
    """Return the faults of the best explanation of each failing activation, each with its place."""
    return [{(f.name, f.step) for f in verdict.local.named} for verdict in result.origins if verdict.local]


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, (_, _, dtypes) in EVERYWHERE.items() for dtype in dtypes])
def test_a_mistake_in_every_unexposed_layer_is_named_at_all_its_places(name: str, dtype: str) -> None:
    plant, steps, _ = EVERYWHERE[name]
    assert named(judged(plant, dtype=dtype)) == [{(name, step) for step in steps}]


def test_the_wrong_number_in_every_unexposed_layer_is_estimated() -> None:
    (verdict,) = judged(EPSILON).origins
    assert verdict.local
    for fault in verdict.local.named:
        assert fault.estimate
        assert fault.estimate.value == pytest.approx(1e-5, abs=fault.estimate.room(verdict.local.filter_threshold))
        assert fault.estimate.deviation < 1e-9


def test_two_mistakes_in_every_unexposed_layer_are_both_named() -> None:
    both = {*(("epsilon", step) for step in NORMS), *(("gelu-variant", step) for step in GELUS)}
    assert named(judged(EPSILON, TANH_GELU)) == [both]


def test_a_mistake_in_one_of_the_unexposed_layers_is_placed_there() -> None:
    (gelu, *_) = sorted(GELUS)
    assert named(judged(TANH_GELU_IN_LAYER_0)) == [{("gelu-variant", gelu)}]


def test_where_every_other_layer_is_hidden_each_failure_names_the_mistake_of_the_layers_before_it() -> None:
    found = named(judged(EPSILON, golden="deep", layers=(1, 3, 5)))
    assert [{name for name, _ in one} for one in found] == [{"epsilon"}] * 3
    assert [len(one) for one in found] == [5, 4, 4]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("plant", "name"), [(NO_TOKEN_TYPES, "token-types-missing"), (NO_POSITIONS, "positions-missing")])
def test_a_pass_excludes_mistakes_of_unexposed_layers_that_would_fail(plant: Change, name: str, dtype: str) -> None:
    excluded = {s.fault: s for s in excludes(judged(dtype=dtype).verdicts)}
    assert excluded[name].separable == excluded[name].places == 1
    assert {fault for one in named(judged(plant, dtype=dtype)) for fault, _ in one} == {name}


def test_a_pass_does_not_exclude_a_mistake_that_the_rounding_of_unexposed_layers_masks() -> None:
    result = judged(TANH_GELU, dtype="bfloat16")
    assert result.conforms
    assert {s.fault: s.separable for s in excludes(result.verdicts)}["gelu-variant"] == 0


def test_unexposed_layers_are_searched_for_multiple_choice() -> None:
    exposes = {"encoder.layer.2.output.LayerNorm"}.__contains__
    several = network("sentence-heads", 1)
    assert several.batches["sentence-heads-1"].choice_labels is not None
    assert check(Candidate(exposes=exposes), several).conforms
    (found,) = named(check(Candidate((EPSILON,), exposes=exposes), several))
    assert {name for name, _ in found} == {"epsilon"}
    assert len(found) == 7


def test_a_mistake_in_unexposed_layers_is_named_in_every_batch_of_a_run() -> None:
    result = judged(EPSILON, golden="edges")
    failing = [verdict for verdict in result.origins if verdict.local]
    assert len(failing) > SEARCHES
    assert {frozenset(name for name, _ in one) for one in named(result)} == {frozenset({"epsilon"})}


def _observation(*plants: Change) -> Observation:
    """Return the last hidden state of a candidate on `tiny`, observed from the token ids."""
    golden = load_golden("tiny")
    (batch,) = golden.batches.values()
    oracle = Network(golden.checkpoint.architecture, rounded_weights(golden.checkpoint, "float32"), batch)
    runner = Candidate(plants, exposes={LAST}.__contains__).prepare(golden.checkpoint, "cpu", "float32")
    return Observation(oracle, LAST, dict(runner(batch.on("cpu")))[LAST].numpy(), {})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_unexposed_layers_are_searched_under_the_arithmetics_of_the_device(device: str) -> None:
    case = UnexposedLayersSearch("float32", device)._case(_observation())
    legal = {hypothesis.arithmetic.name for hypothesis in hypotheses("float32", device)}
    assert {judged.hypothesis.arithmetic.name for judged in case.arithmetics} == legal


def test_an_explanation_is_rejected_if_it_leaves_what_a_filter_has_detected() -> None:
    observation = _observation(EPSILON)
    sigma = np.sqrt(observation.whole.segment.propagate({}, representative_hypothesis("float32")))
    moved = 6.2 * sigma * (np.arange(sigma.shape[-1]) == 0)  # within the limits of RMS and largest error
    observation = replace(observation, actual=observation.actual + moved)
    called = SimpleNamespace(fault=SimpleNamespace(name="another"), known_effect=moved)

    def names(*detected: SimpleNamespace) -> set[frozenset[str]]:
        found = UnexposedLayersSearch("float32").explanations(observation, (), detected)  # type: ignore[arg-type]
        return {frozenset(fault.name for fault in explanation.faults) for explanation in found}

    assert frozenset({"epsilon"}) in names()
    assert frozenset({"epsilon"}) not in names(called)


class _Constant:
    """A candidate that exposes the last hidden state alone, with one value everywhere."""

    def __init__(self, value: float) -> None:
        self.value = value

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        name = last_hidden(checkpoint.architecture)
        width = checkpoint.architecture.hidden_size
        return lambda batch: {name: np.full((*batch.input_ids.shape, width), self.value, np.float32)}


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_number_with_an_infinite_error_is_no_finding(value: float) -> None:
    result = check(_Constant(value), "tiny")
    assert result.outcome == "fail"
    faults = [fault for verdict in result.origins if verdict.local for fault in verdict.local.named]
    assert all(math.isfinite(fault.estimate.deviation) for fault in faults if fault.estimate)
    assert "inf" not in str(result).split("how errors are measured")[0].split()
