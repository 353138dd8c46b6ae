"""Elements that must be 0: no rounding occurs at them, and they are no evidence about rounding; a result that must not be 0."""

from dataclasses import replace

import numpy as np
import pytest

from conformance import Architecture, Batch, Checkpoint, check, golden_of, load_golden
from conformance.judge.evidence import LocalJudgement
from conformance.judge.judge import Judge
from conformance.judge.limits import STATISTICS
from conformance.judge.observation import Observation
from conformance.judge.screen import screened_locally
from conformance.model.activations import parameter_shapes
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import FORMATS, Array
from conformance.numerics.thresholds import rms_threshold, sidak_share
from conformance.oracle import Network

ALPHA = 1e-8
GOLDEN = load_golden("tiny")
TABLE = "bert.embeddings.position_embeddings.weight.grad"
WEIGHT = "bert.encoder.layer.1.intermediate.dense.weight.grad"


def _network(batch: Batch) -> Network:
    return Network(GOLDEN.checkpoint.architecture, GOLDEN.checkpoint.weights, batch, source="cls.loss")


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
    return screened_locally(replace(observation, actual=actual), legal, ALPHA)


def test_the_rows_of_a_table_that_are_not_looked_up_do_not_dilute_the_errors_of_the_others() -> None:
    network = _network(GOLDEN.batches["padded"])
    assert network.batch.length < network.architecture.max_position_embeddings
    (local, *_) = _judged(network, TABLE, error=3.0)
    assert local.error.rms == pytest.approx(3.0, rel=1e-6)
    alpha = sidak_share(STATISTICS, ALPHA)
    assert local.rms_threshold == rms_threshold(network.batch.length, alpha) < 3.0


def test_a_gradient_that_is_zero_everywhere_prefers_no_arithmetic() -> None:
    layer = "encoder.layer.1"
    hidden = (f"{layer}.intermediate.dense.grad", f"{layer}.intermediate.intermediate_act_fn.grad")
    network = _network(GOLDEN.batches["padded"])
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
    network = _network(GOLDEN.batches["padded"])
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
