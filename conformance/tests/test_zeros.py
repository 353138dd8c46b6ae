"""Elements that must be 0: those of padding, of masked keys and states, and of results that no input reaches."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from conformance import Architecture, Batch, Checkpoint, check, golden_of, load_golden
from conformance.judge.evidence import LocalJudgement
from conformance.judge.judge import Judge
from conformance.judge.judged_array import STATISTICS
from conformance.judge.local_error import judge_locally
from conformance.judge.observation import Observation
from conformance.model.activation import attended_keys
from conformance.model.activations import parameter_shapes
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import FORMATS, Array
from conformance.numerics.thresholds import rms_threshold, sidak_share
from conformance.oracle import Network

ALPHA = 1e-8
TABLE = "bert.embeddings.position_embeddings.weight.grad"
WEIGHT = "bert.encoder.layer.1.intermediate.dense.weight.grad"


def _network(golden: str = "tiny", source: str = "cls.loss") -> Network:
    loaded = load_golden(golden)
    batch = next(iter(loaded.batches.values()))
    return Network(loaded.checkpoint.architecture, loaded.checkpoint.weights, batch, source=source)


def _judged(
    network: Network, name: str, hidden: tuple[str, ...] = (), scale: float = 1.0, error: float = 0.0
) -> tuple[LocalJudgement, ...]:
    """Judge a result in bfloat16, rounded to storage, with errors of `error` sigma added, if its upstream gradient is scaled."""
    storage = FORMATS["bfloat16"]
    values = {n: storage.round(value * (scale if n.endswith(".grad") else 1.0)) for n, value in network.walk()}
    observed = {n: value for n, value in values.items() if n != name and n not in hidden}
    observation = Observation(network, name, np.zeros(values[name].shape), observed)
    legal = hypotheses("bfloat16")
    right = observation.whole.segment.value
    sigma = np.sqrt(observation.whole.segment.propagate({}, legal[0]))
    signs = np.random.default_rng(0).choice([-1.0, 1.0], right.shape)
    actual: Array = right + np.where(right != 0.0, error * sigma * signs, 0.0)
    return judge_locally(replace(observation, actual=actual), legal, ALPHA, depth="screen")


def test_the_rows_of_a_table_that_are_not_looked_up_do_not_dilute_the_errors_of_the_others() -> None:
    network = _network()
    assert network.batch.length < network.architecture.max_position_embeddings
    (local, *_) = _judged(network, TABLE, error=3.0)
    assert local.error.rms == pytest.approx(3.0, rel=1e-6)
    alpha = sidak_share(STATISTICS, ALPHA)
    assert local.rms_threshold == rms_threshold(network.batch.length, alpha) < 3.0


def test_a_gradient_that_is_zero_everywhere_prefers_no_arithmetic() -> None:
    layer = "encoder.layer.1"
    hidden = (f"{layer}.intermediate.dense.grad", f"{layer}.intermediate.intermediate_act_fn.grad")
    network = _network()
    assert len({local.nll for local in _judged(network, WEIGHT, hidden)}) > 1
    nothing = _judged(network, WEIGHT, hidden, scale=0.0)
    assert {local.nll for local in nothing} == {0.0}
    assert all(local.passes for local in nothing)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "of_query", "outcome", "place"),
    [
        ("encoder.layer.0.attention.self.probs", 0, "fail", "masked keys"),
        ("encoder.layer.0.attention.self.probs", -1, "pass", ""),  # a padded query
        ("encoder.layer.0.output.LayerNorm.grad", -1, "fail", "padded positions"),
        ("encoder.layer.0.output.LayerNorm", -1, "pass", ""),
    ],
)
def test_a_number_that_is_not_finite_is_an_error_where_zero_is_required_and_is_ignored_at_padding(
    value: float, name: str, of_query: int, outcome: str, place: str
) -> None:
    network = _network()
    row = int(network.batch.mask.sum(1).argmin())
    found = {n: v.astype(np.float32) for n, v in network.walk() if not network.table[n].is_internal}
    index = (row, slice(None), of_query, -1) if "query" in network.table[name].axes else (row, of_query)
    found[name][index] = value
    verdict = next(v for v in Judge(network, "float32", depth="screen").judge(found.items()) if v[0].activation == name)[0]
    assert (verdict.outcome, verdict.role == "origin") == (outcome, outcome == "fail")
    assert place in verdict.reason


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_norm_whose_result_is_zero_fails_without_an_error_of_the_search() -> None:
    zero = "cls.predictions.transform.LayerNorm"  # Only an infinite epsilon would give it.
    a = Architecture(7, 4, 1, 2, 3, max_position_embeddings=4, heads=("masked_lm",))
    rng, weights = np.random.default_rng(0), {}
    for name, shape in parameter_shapes(a).items():
        normal = 0.3 * rng.standard_normal(shape).astype(np.float32).astype(np.float64)
        weights[name] = 1.0 + normal if name.endswith("LayerNorm.weight") else normal
    one = np.ones((1, 1), np.int64)
    batch = Batch(3 * one, 0 * one, one)
    network, values = Network(a, weights, batch), dict[str, Array]()
    for name, row in network.table.items():
        value = network.step(name, *(values[p] for p in row.parents)).value
        values[name] = (0.0 if name == zero else 1.0) * np.asarray(value, np.float32).astype(np.float64)
    seen = {n: v.astype(np.float32) for n, v in values.items() if not network.table[n].is_internal}
    result = check(lambda *_: lambda _: dict(seen), golden_of("one", Checkpoint(a, weights), {"one": batch}))
    assert (result.outcome, [v.activation for v in result.origins]) == ("fail", [zero])


MASKED = [
    ("tiny", "encoder.layer.0.attention.self.key.grad", "padded positions"),
    ("tiny", "encoder.layer.0.attention.self.scores.grad", "padded queries or masked keys"),
    ("decoder", "encoder.layer.0.attention.self.scores.grad", "padded queries or masked keys"),
    ("cross-attention", "encoder.layer.1.crossattention.self.key.grad", "masked encoder states"),
]


def _failed(network: Network, name: str, error: Array) -> dict[str, str]:
    """Return the reasons of the failures if `error` is added to an activation before all later ones are computed from it."""

    def shown() -> Iterator[tuple[str, Array]]:
        values = dict[str, Array]()
        for each, row in network.table.items():
            values[each] = network.step(each, *(values[parent] for parent in row.parents)).value
            if each == name:
                values[each] = values[each] + error
            if not row.is_internal:
                yield each, values[each]

    judged = Judge(network, "float64", depth="screen").judge(shown())
    return {verdict.activation: verdict.reason for verdict, _ in judged if verdict.outcome == "fail"}


@pytest.mark.parametrize(("golden", "name", "what"), MASKED)
def test_a_gradient_where_something_is_masked_fails_even_if_all_later_gradients_are_computed_from_it(
    golden: str, name: str, what: str
) -> None:
    network = _network(golden, "cls.predictions.loss")
    row, batch = network.table[name], network.batch
    if "key" in row.axes:
        masked = ~attended_keys(row, batch)[:, None]
    else:
        masked = ~(batch.states_mask if "state" in row.axes else batch.mask)[:, :, None]
    shape = row.shape(batch.size, batch.length, network.architecture.num_attention_heads, batch.states_length)
    error = np.where(np.broadcast_to(masked, shape), 0.25, 0.0)
    assert _failed(network, name, error) == {name: f"{what} have a gradient, up to 0.25, where they must have none"}


def test_the_gradient_of_a_probability_at_a_masked_key_may_be_nonzero() -> None:
    network, name = _network("decoder", "cls.predictions.loss"), "encoder.layer.0.attention.self.probs.grad"
    values = dict(network.walk())
    assert values[name][:, :, 0, 1:].any()
    assert _failed(network, name, np.zeros_like(values[name])) == {}
