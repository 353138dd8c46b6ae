"""The initialisation of a network: constants are compared exactly, and random draws by exact statistical tests."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from conformance import load_golden
from conformance.benchmarks.training.initial import CORRECT, DENSE, WRONG
from conformance.checks.check import Request
from conformance.checks.run_check import run_check
from conformance.implementations.demystified import demystified
from conformance.implementations.hugging_face import hf_eager, hf_sdpa
from conformance.implementations.inner_workings import inner_workings
from conformance.implementations.making_bert import making_bert
from conformance.implementations.torch_encoder import torch_encoder, torch_encoder_fast
from conformance.isolation.candidate_work import CandidateWork
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.worker_process import WorkerProcess
from conformance.judge.initial_draws import fits, legal, wrong_initially
from conformance.model.training import at
from conformance.numerics.formats import FORMATS, format_named
from conformance.results.result import Result

GOLDEN = load_golden("tiny")


def judged(candidate: Any, dtype: str = "float32", golden: str = "tiny") -> Result:
    return run_check(Request.of(candidate, golden, "cpu", dtype, "initialization"))


@pytest.mark.landing(name=[*WRONG][::3], dtype="float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_initialization_is_named_at_its_place(name: str, dtype: str) -> None:
    wrong = WRONG[name]
    said = {verdict.activation: verdict.reason for verdict in judged(wrong.candidate, dtype).failures}
    assert wrong.named in said[at(0, wrong.at)], said


@pytest.mark.landing(dtype="float32")
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", CORRECT)
def test_an_unusual_correct_initialization_passes(name: str, dtype: str) -> None:
    result = judged(CORRECT[name].candidate, dtype)
    assert result.outcome == "pass", str(result)


@pytest.mark.landing(dtype="float32")
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(
    ("candidate", "golden"),
    [*((each, "tiny") for each in (hf_eager, hf_sdpa, making_bert, inner_workings, torch_encoder)), (demystified, "sinusoidal")],
)
def test_the_implementations_initialise_as_required(candidate: Any, golden: str, dtype: str) -> None:
    result = judged(candidate, dtype, golden)
    assert result.outcome == "pass", str(result)


QUERY, KEY, WORDS = (
    f"bert.{name}.weight"
    for name in ("encoder.layer.0.attention.self.query", "encoder.layer.0.attention.self.key", "embeddings.word_embeddings")
)


@pytest.mark.landing(dtype="bfloat16", golden="tiny")
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("golden", ["tiny", "wide"])
def test_copied_heads_rows_and_transposed_matrices_are_not_independent(golden: str, dtype: str) -> None:
    """Prove it for independent draws of a query's and a key's weight and of the words, whose row 0 is zero."""
    a, storage = load_golden(golden).checkpoint.architecture, format_named(dtype)
    rng, shapes = np.random.default_rng(0), {QUERY: a.hidden_size, KEY: a.hidden_size, WORDS: a.vocab_size}
    fair = {name: rng.normal(0.0, a.initializer_range, (rows, a.hidden_size)) for name, rows in shapes.items()}
    fair[WORDS][0] = 0.0

    def wrong(**changed: np.ndarray[Any, Any]) -> dict[str, str]:
        values = {**fair, **{{"query": QUERY, "key": KEY, "words": WORDS}[name]: x for name, x in changed.items()}}
        return wrong_initially({name: storage.round(x) for name, x in values.items()}, a, storage, 1e-6)

    size, half = a.head_size, a.vocab_size // 2
    assert wrong() == {}
    heads = np.tile(fair[QUERY][:size], (a.num_attention_heads, 1))
    assert wrong(query=heads) == {QUERY: f"row {size} is row 0, and {len(heads) - size - 1} more are not new"}
    repeated = np.array(fair[WORDS])
    repeated[half : 2 * half - 1] = repeated[1:half]
    assert wrong(words=repeated) == {WORDS: f"row {half} is row 1, and {half - 2} more are not new"}
    said = wrong(key=fair[QUERY].T)
    assert said == {KEY: f"row 0 is column 0 of {QUERY}, and {2 * a.hidden_size - 1} more are not new"}


def test_a_candidate_without_an_initialization_is_skipped_with_the_reason() -> None:
    result = judged(replace(making_bert, untrained=None))
    assert (result.outcome, "has no parameters that training starts from" in result.reason) == ("skip", True)
    assert "a TorchImplementation has `untrained=` for it" in result.reason


def test_an_initialization_in_a_worker_is_judged_as_in_this_process() -> None:
    with WorkerProcess(CandidateWork) as worker:
        there = judged(RemoteCandidate(worker, "conformance.implementations.making_bert:making_bert"))
        without = judged(RemoteCandidate(worker, "conformance.implementations.torch_encoder:torch_encoder_fast"))
    here = judged(making_bert)
    assert there.outcome == here.outcome == "pass"
    assert [(v.activation, v.local) for v in there.verdicts] == [(v.activation, v.local) for v in here.verdicts]
    assert without.outcome == judged(torch_encoder_fast).outcome


ALTERED = {
    "shape is (3,), expected (64, 32)": {f"{DENSE}.weight": torch.zeros(3)},
    "nan": {f"{DENSE}.weight": torch.full((64, 32), torch.nan)},
    "unknown activation 'step.0.nothing'": {"nothing": torch.ones(1)},
}


@pytest.mark.parametrize("said", ALTERED)
def test_an_unknown_name_another_shape_or_a_value_that_is_not_finite_fails_alone(said: str) -> None:
    def altered(*asked: Any) -> Any:
        runner = making_bert.prepare(*asked)
        return replace(runner, initial=lambda: {**dict(runner.initial()), **ALTERED[said]})  # type: ignore[misc]

    (failure,) = judged(SimpleNamespace(prepare=altered)).failures
    assert said in failure.reason


@given(
    st.sampled_from([0, 1, 2]), st.sampled_from(sorted(FORMATS)), st.tuples(st.integers(1, 64), st.integers(1, 64)), st.integers(0)
)
def test_draws_from_the_legal_distributions_raise_no_alarm(which: int, dtype: str, shape: tuple[int, int], seed: int) -> None:
    architecture, storage = GOLDEN.checkpoint.architecture.with_(initializer_range=0.03), format_named(dtype)
    x = storage.round(drawn(which, 0.03, shape, seed))
    assert wrong_initially({f"{DENSE}.weight": x}, architecture, storage, 1e-6) == {}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_false_alarms_are_no_more_frequent_than_requested(dtype: str) -> None:
    trials, alpha, storage = 300, 0.02, format_named(dtype)
    found = sum(not fits(storage.round(drawn(0, 0.05, (16, 16), seed)), legal(0.05)[0], storage, alpha) for seed in range(trials))
    assert binom.sf(found - 1, trials, 4 * alpha) > 1e-6  # Four tests.
    assert found > 0


def drawn(which: int, deviation: float, shape: tuple[int, ...], seed: int) -> Any:
    """Draw by inversion of the distribution function on a grid."""
    grid = np.linspace(-8.0 * deviation, 8.0 * deviation, 200_001)
    levels = legal(deviation)[which].cdf(grid)
    inside = (levels > 0.0) & (levels < 1.0)
    return np.interp(np.random.default_rng(seed).random(shape), levels[inside], grid[inside])
