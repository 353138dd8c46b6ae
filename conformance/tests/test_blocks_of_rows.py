"""A judgement in blocks of rows equals that of the whole, and its global error needs no second pass; what a pass confirms of a
number holds at the step where the number is least visible."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from conformance import load_golden
from conformance.faults import BY_NAME
from conformance.faults.fault import ROWS
from conformance.judge import failing_activation
from conformance.judge import observation as parts
from conformance.judge.evidence import FilterResult, LocalJudgement
from conformance.judge.fault_directions import direction, possible_directions
from conformance.judge.filters import gross_result, is_gross, largest_element
from conformance.judge.global_error import global_error
from conformance.judge.judged_elements import Repeats, hashed
from conformance.judge.local_error import judge_locally
from conformance.judge.noise import of_segment
from conformance.judge.observation import Observation
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.arithmetic import hypotheses, representative_hypothesis
from conformance.numerics.formats import FORMATS, Array, Captured
from conformance.numerics.thresholds import max_threshold
from conformance.oracle import Network

ALPHA = 1e-8
GOLDENS = ("tiny", "sinusoidal")


def network_of(golden: str, dtype: str) -> Network:
    loaded = load_golden(golden)
    batch = next(iter(loaded.batches.values()))
    return Network(loaded.checkpoint.architecture, rounded_weights(loaded.checkpoint, dtype), batch)


def correct(network: Network, dtype: str, spoilt: str = "", by: float = 0.0) -> Mapping[str, Captured]:
    """Return a correct candidate's activations: each is computed from the stored parents and rounded once; `by` is added
    to the activation `spoilt`."""
    values: dict[str, Captured] = {}
    for name, row in network.table.items():
        step = network.step(name, *(values[p].astype(np.float64) for p in row.parents))
        values[name] = FORMATS[dtype].stored(step.value + by * (name == spoilt))
    return values


def observations(network: Network, values: Mapping[str, Captured]) -> Iterator[Observation]:
    seen: dict[str, Captured] = {}
    for name, value in values.items():
        observation = Observation(network, name, value, dict(seen))
        if observation.count and not observation.is_exact:
            yield observation
        seen[name] = value


def figures(local: LocalJudgement) -> list[float]:
    """Return all numbers of a judgement; of gross faults only that they are gross."""
    numbers = [local.error.rms, local.error.max, local.error.max_abs, local.nll, local.rms_threshold, local.max_threshold]
    numbers += [x for f in local.filters if f.amplitude for x in (f.amplitude, f.z, f.expected_z)]
    numbers += [x for f in local.filters if f.confirmed for x in (f.confirmed.right, f.confirmed.deviation)]
    return [float(x) for x in numbers if x is not None]


@pytest.mark.parametrize(("golden", "dtype"), [("tiny", "float32"), ("tanh", "bfloat16")])
def test_a_judgement_in_blocks_equals_that_of_the_whole(golden: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of(golden, dtype)
    values = correct(network, dtype)

    def judged(block: int) -> list[LocalJudgement]:
        monkeypatch.setattr(parts, "BLOCK", block)
        return [local for o in observations(network, values) for local in judge_locally(o, hypotheses(dtype), ALPHA)]

    whole, blocks = judged(parts.BLOCK), judged(1)
    assert len(next(observations(network, values)).rows) == network.batch.size > 1
    assert len(whole) == len(blocks) > 30
    for a, b in zip(whole, blocks, strict=True):
        assert (a.hypothesis, a.error.index, len(a.filters)) == (b.hypothesis, b.error.index, len(b.filters))
        assert figures(a) == pytest.approx(figures(b), rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("of", ["attention.output.LayerNorm", "intermediate.intermediate_act_fn"])
def test_rows_and_values_that_repeat_between_blocks_share_their_noise(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, legal = network_of("tiny", "bfloat16"), hypotheses("bfloat16")
    twice = replace(network.batch, **{k: np.concatenate([v, v]) for k, v in network.batch.arrays().items()})
    network = Network(network.architecture, network.weights, twice)
    one = next(o for o in observations(network, correct(network, "bfloat16")) if o.name == f"encoder.layer.0.{of}")
    whole = judge_locally(one, legal, ALPHA)
    monkeypatch.setattr(parts, "BLOCK", 1)
    blocks = judge_locally(Observation(network, one.name, one.actual, one.captured), legal, ALPHA)
    assert figures(blocks[0]) == pytest.approx(figures(whole[0]), rel=1e-4, abs=1e-3)
    apart, shared = (of_segment(one.whole.segment, legal[0], one.judged, apart=apart) for apart in (True, False))
    weights = np.ones(one.actual.shape) * one.judged
    assert shared.projected(weights)[0] >= 1.9 * apart.projected(weights)[0]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_fault_whose_result_is_not_finite_is_gross_with_a_finite_z(number: float) -> None:
    network = network_of(GOLDENS[0], "float32")
    one = next(o for o in observations(network, correct(network, "float32")) if not o.is_exact)
    look = possible_directions(one.probe.segment, FORMATS["float32"])[0]
    noise, effect = one.probe.noise(representative_hypothesis("float32")), np.zeros(one.probe.actual.shape)
    effect[tuple(np.argwhere(one.probe.judged)[0])] = number
    size = largest_element(effect, noise)
    result = gross_result(look, size)
    assert is_gross(size, max_threshold(one.count, ALPHA))
    assert result.separable
    assert np.isfinite(result.expected_z)
    if not one.probe.judged.all():
        effect[:] = np.where(one.probe.judged, 0.0, number)
        assert largest_element(effect, noise) == 0.0


@pytest.mark.parametrize("golden", GOLDENS)
def test_a_fault_that_is_gross_on_the_probe_is_gross_on_all_rows(golden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of(golden, "float32")
    hypothesis, count = representative_hypothesis("float32"), 0
    monkeypatch.setattr(parts, "SMALL", 0)
    monkeypatch.setattr(parts, "BLOCK", 1)
    for one in observations(network, correct(network, "float32")):
        assert one.probe.actual.size < one.actual.size or network.batch.size == 1 or not one.activation.axes
        probe, limit = one.probe, max_threshold(one.count, ALPHA)
        few = of_segment(probe.segment, hypothesis, probe.judged)
        every = of_segment(one.whole.segment, hypothesis, one.judged)
        for look in possible_directions(probe.segment, FORMATS["float32"]):
            if look.fault.extent == ROWS or look.effect is None or not is_gross(largest_element(look.effect, few), limit):
                continue
            effect = look.on(one.whole.segment).effect
            assert effect is not None, (one.name, look.fault.name)
            assert is_gross(largest_element(effect, every), limit), (one.name, look.fault.name)
            count += 1
    assert count > 50


@pytest.mark.parametrize("golden", GOLDENS)
def test_the_effect_of_a_fault_on_a_block_is_that_part_of_its_effect_on_the_whole_unless_it_acts_across_rows(
    golden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, across = network_of(golden, "float32"), set()
    monkeypatch.setattr(parts, "BLOCK", 1)
    for one in observations(network, correct(network, "float32")):
        for look in possible_directions(one.whole.segment, FORMATS["float32"]) if len(one.rows) > 1 else ():
            whole, room = look.effect, 1e-12 * float(np.abs(one.actual).max())
            for rows in one.rows:
                effect = look.on(one.block(rows).segment).effect
                expected = None if whole is None else whole[rows]
                unlike = np.abs((0.0 if effect is None else effect) - (0.0 if expected is None else expected)).max() > room
                if unlike:
                    across.add(look.fault.name)
    assert across == {"hidden-clipped"}


def test_the_effect_of_an_error_on_a_step_is_the_difference_of_the_values() -> None:
    for network in (network_of(golden, "float64") for golden in GOLDENS):
        rng, values = np.random.default_rng(0), dict(network.walk())
        for (name, row), size in product(network.table.items(), (1e-7, 1e-3, 1.0)):
            step = network.step(name, *(values[p] for p in row.parents))
            errors = [size * rng.standard_normal(p.shape) for p in step.parents]
            expected = step.value - step.replaced(parents=tuple(p - e for p, e in zip(step.parents, errors, strict=True))).value
            # The allowed difference: float32 rounding, the quadratic term of a function below 2^-12, and float64's own rounding.
            room = 2.0**-11 * float(np.abs(expected).max()) + 1e-14 * float(np.abs(step.value).max())
            assert not errors or np.abs(step.effect_of(*errors) - expected).max() <= room, (name, size)


@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("spoilt", [0.0, 0.5])
def test_the_global_error_is_computed_without_a_second_forward_pass(
    spoilt: float, rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the first rows alone equals that of all rows there, in whatever blocks."""
    network = network_of("tiny", "float32")
    values = correct(network, "float32", "encoder.layer.0.attention.self.query", spoilt)
    truth, errors = dict(network.walk()), dict[str, Array]()
    monkeypatch.setattr(parts, "BLOCK", 1)
    for name, actual in values.items():
        if network.table[name].axes[:1] != ("batch",):
            continue
        one = Observation(network, name, actual, {n: values[n] for n in errors}, errors)
        followed = global_error(one, np.ones((1,) * actual.ndim), rows)
        errors[name] = followed.error
        judged = one.judged[:rows]
        expected = np.where(judged, (actual - truth[name])[:rows], 0.0)  # Padding does not count.
        largest = np.abs(expected).max()
        assert np.abs(np.where(judged, followed.error, 0.0) - expected).max() <= 2e-3 * largest + 1e-11, name
        assert followed.summary.max_abs == pytest.approx(largest, rel=2e-3, abs=1e-11)
        rms = np.sqrt(np.mean(np.square(expected[judged])))
        assert followed.summary.rms == pytest.approx(rms, rel=4e-3, abs=1e-11), name


@pytest.mark.parametrize("dtype", FORMATS)
def test_equal_rows_have_equal_hashes_and_rows_that_differ_in_signs_alone_have_not(dtype: str) -> None:
    """The gradients of the two answers to a question are opposite: the errors of equal rows would cancel in a projection."""
    rng = np.random.default_rng(0)
    for width in (1, 2, 6, 7, 8, 64):
        stored = FORMATS[dtype].stored(rng.standard_normal((500, width)))
        stored[100] = stored[3]
        some = np.where(rng.random(stored.shape) < 0.5, -stored, stored)
        some[:, 0] = -stored[:, 0]
        every = np.concatenate([stored, -stored, some])
        repeats = Repeats.of(hashed(every, 1))
        assert repeats.draws == len({row.tobytes() for row in every})
        assert repeats.number[100] == repeats.number[3]


def _numbers(dtype: str) -> Iterator[tuple[Observation, FilterResult]]:
    """Yield each number that is confirmed at a step of the second layer of `tiny`, as its filter, with the step."""
    network = network_of("tiny", dtype)
    for one in observations(network, correct(network, dtype)):
        filters = judge_locally(one, hypotheses(dtype), ALPHA)[0].filters if one.activation.layer == 1 else ()
        for f in filters:
            parameter = BY_NAME[f.name].parameter
            if f.confirmed and parameter and parameter.quantity and math.isfinite(f.confirmed.deviation):
                yield one, f


def _passes(one: Observation, found: FilterResult, times: float, dtype: str) -> bool:
    """Return whether the step passes if its number deviates, at this step alone, by a multiple of what is confirmed."""
    assert found.confirmed
    wrong = direction(BY_NAME[found.name], found.step, one.whole.segment, FORMATS[dtype])
    faulty = wrong.applied(found.confirmed.right + times * found.confirmed.deviation)
    assert faulty is not None
    actual: Any = FORMATS[dtype].stored(faulty.value)
    return any(local.passes for local in judge_locally(replace(one, actual=actual), hypotheses(dtype), ALPHA))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_deviation_beyond_what_is_confirmed_fails_at_any_one_step_and_a_tenth_of_it_passes(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_activation, "_explained", lambda _, found, *rest: tuple(one.local for one in found))
    names = set()
    for one, found in _numbers(dtype):
        assert not _passes(one, found, 1.5, dtype), (found.name, one.name)
        assert _passes(one, found, 0.1, dtype), (found.name, one.name)
        names.add(found.name)
    assert {"epsilon", "scale-missing", "softmax-temperature", "mask-constant", "gelu-argument", "residual-scaled"} <= names
