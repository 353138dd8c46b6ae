"""Candidates that hide layers: a mistake in all of them is named with its places, and the mistakes excluded by a pass include
theirs."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from conformance import Result, check, load_golden
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.equations import Change
from conformance.benchmarks.detection.networks import network
from conformance.diagnosis.unexposed_layers import UnexposedLayersSearch
from conformance.judge.observation import Observation
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.oracle import Network
from conformance.results.to_records import excludes
from conformance.tests.planted_mistakes import MadeOf

LAST = "encoder.layer.1.output.LayerNorm"
OF_LAYERS = [f"encoder.layer.{i}.{{}}" for i in (0, 1)]
NORMS = {"embeddings.LayerNorm", *(n.format(f"{part}output.LayerNorm") for n in OF_LAYERS for part in ("attention.", ""))}
SCORES, GELUS = ({n.format(step) for n in OF_LAYERS} for step in ("attention.self.scores", "intermediate.intermediate_act_fn"))

EPSILON, TANH_GELU = changed("norms", "right(eps=1e-5)"), changed("functions", "tanh_gelu(x)")
UNBIASED = changed("norms", "centred(x) * torch.rsqrt(x.var(-1, keepdim=True) + eps) * weight + bias")
TANH_GELU_IN_LAYER_0 = changed("activated", "tanh_gelu(x)", layers=(0,))
NO_TOKEN_TYPES, NO_POSITIONS = changed("type", "0 * right()"), changed("position", "0 * right()")
EVERYWHERE: dict[str, tuple[Change, set[str], str]] = {
    "epsilon": (EPSILON, NORMS, "bfloat16"),
    "norm-variance": (UNBIASED, NORMS, "float16"),
    "scale-missing": (changed("scores", "q @ k.mT * 0.35"), SCORES, "float16"),
    "scores-transposed": (changed("scores", "k @ q.mT * d**-0.5"), SCORES, "bfloat16"),
    "gelu-variant": (TANH_GELU, GELUS, "float32"),
}


def judged(*plants: Change, golden: str = "tiny", dtype: str = "float32", layers: tuple[int, ...] = (1,)) -> Result:
    exposed = {f"encoder.layer.{layer}.output.LayerNorm" for layer in layers}
    return check(Candidate(plants, exposes=exposed.__contains__), golden, dtype=dtype)


def named(result: Result) -> list[set[tuple[str, str]]]:
    """Return the faults of the best explanation of each failing activation, each with its place."""
    return [{(f.name, f.step) for f in verdict.local.named} for verdict in result.origins if verdict.local]


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_mistake_in_every_unexposed_layer_is_named_at_all_its_places(name: str) -> None:
    plant, steps, dtype = EVERYWHERE[name]
    assert named(judged(plant, dtype=dtype)) == [{(name, step) for step in steps}]


def test_the_wrong_number_in_every_unexposed_layer_is_estimated() -> None:
    (verdict,) = judged(EPSILON).origins
    assert verdict.local
    assert {(fault.name, fault.step) for fault in verdict.local.named} == {("epsilon", step) for step in NORMS}
    for fault in verdict.local.named:
        assert fault.estimate
        assert fault.estimate.value == pytest.approx(1e-5, abs=fault.estimate.room(verdict.local.filter_threshold))
        assert fault.estimate.deviation < 1e-9


def test_two_mistakes_in_every_unexposed_layer_and_one_in_a_single_layer_are_named_at_their_places() -> None:
    both = {*(("epsilon", step) for step in NORMS), *(("gelu-variant", step) for step in GELUS)}
    assert named(judged(EPSILON, TANH_GELU)) == [both]
    assert named(judged(TANH_GELU_IN_LAYER_0)) == [{("gelu-variant", min(GELUS))}]


def test_where_every_other_layer_is_hidden_each_failure_names_the_mistake_of_the_layers_before_it() -> None:
    places = named(judged(EPSILON, golden="deep", layers=(1, 3, 5)))
    assert [{name for name, _ in place} for place in places] == [{"epsilon"}] * 3
    assert [len(place) for place in places] == [5, 4, 4]


@pytest.mark.landing({"dtype": "float32", "name": "token-types-missing"}, dtype="bfloat16", name="positions-missing")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("plant", "name"), [(NO_TOKEN_TYPES, "token-types-missing"), (NO_POSITIONS, "positions-missing")])
def test_a_pass_excludes_mistakes_of_unexposed_layers_that_would_fail(plant: Change, name: str, dtype: str) -> None:
    excluded = {s.fault: s for s in excludes(judged(dtype=dtype).verdicts)}
    assert excluded[name].separable == excluded[name].places == 1
    assert {fault for place in named(judged(plant, dtype=dtype)) for fault, _ in place} == {name}


def test_a_pass_does_not_exclude_a_mistake_that_the_rounding_of_unexposed_layers_masks() -> None:
    result = judged(TANH_GELU, dtype="bfloat16")
    assert result.conforms
    assert {s.fault: s.separable for s in excludes(result.verdicts)}["gelu-variant"] == 0


def test_unexposed_layers_are_searched_for_multiple_choice() -> None:
    exposes = {"encoder.layer.2.output.LayerNorm"}.__contains__
    several = network("sentence-heads", 1)
    assert several.batches["sentence-heads-1"].choice_labels is not None
    assert check(Candidate(exposes=exposes), several).conforms
    (place,) = named(check(Candidate((EPSILON,), exposes=exposes), several))
    assert ({name for name, _ in place}, len(place)) == ({"epsilon"}, 7)


def _observation(*plants: Change) -> Observation:
    """Return the last hidden state of a candidate on `tiny`, observed from the token ids."""
    golden = load_golden("tiny")
    (batch,) = golden.batches.values()
    oracle = Network(golden.checkpoint.architecture, rounded_weights(golden.checkpoint, "float32"), batch)
    runner = Candidate(plants, exposes={LAST}.__contains__).prepare(golden.checkpoint, "cpu", "float32")
    return Observation(oracle, LAST, dict(runner(batch.on("cpu")))[LAST].numpy(), {})


def test_an_explanation_is_rejected_if_it_leaves_what_a_filter_has_detected() -> None:
    observation = _observation(EPSILON)
    sigma = np.sqrt(observation.whole.segment.propagate({}, representative_hypothesis("float32")))
    moved = 6.2 * sigma * (np.arange(sigma.shape[-1]) == 0)  # within the limits of RMS and largest error
    observation = replace(observation, actual=observation.actual + moved)
    called = SimpleNamespace(fault=SimpleNamespace(name="another"), known_effect=moved)

    def names(*detected: SimpleNamespace) -> set[frozenset[str]]:
        explanations = UnexposedLayersSearch("float32").explanations(observation, (), detected)  # type: ignore[arg-type]
        return {frozenset(fault.name for fault in explanation.faults) for explanation in explanations}

    assert frozenset({"epsilon"}) in names()
    assert frozenset({"epsilon"}) not in names(called)


@pytest.mark.landing(constant=[0.0, 1.0])
@pytest.mark.parametrize("constant", [0.0, 1.0, 1e-3])
def test_a_constant_in_place_of_all_results_fails_without_a_name_or_an_infinite_error(constant: float) -> None:
    result = check(MadeOf(lambda made: {LAST: torch.full_like(made[LAST], constant)}), "tiny")
    (verdict,) = result.origins
    assert verdict.local
    assert (result.outcome, verdict.outcome) == ("fail", "fail")
    assert all(math.isfinite(fault.estimate.deviation) for fault in verdict.local.named if fault.estimate)
    assert constant == 0.0 or not verdict.local.named
    assert "inf" not in str(result).split("how errors are measured")[0].split()
