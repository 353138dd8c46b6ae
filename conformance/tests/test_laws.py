"""The laws: each catches its broken candidate, shrunk to the smallest, and lets a correct, unusual one through."""

import pytest

from conformance.benchmarks.detection.bert import Candidate
from conformance.checks.catalogue import CHECKS
from conformance.checks.check import run
from conformance.tests.lawless import BROKEN, PLANTED, UNUSUAL

WORDS = {
    "generated-batches": "times what rounding explains",
    "padding-length": "in the other run",
    "padding-content": "in the other run",
    "masked-row": "not finite",
    "batching": "in the other run",
    "batching-bitwise": "not the same bits",
    "mask-omitted": "in the other run",
    "token-types-omitted": "nothing may differ there",
    "mask-dtype": "in the other run",
    "repeated": "not the same bits",
    "called-again": "not the same bits",
    "dropout-off": "in training mode",
    "ids-refused": "is accepted",
    "negative-ids-refused": "= -1 is accepted",
    "length-refused": "a length of 33 (the network has 32 positions) is accepted",
    "inputs-untouched": "writes into its input attention_mask",
    "settings-untouched": "changes torch's random state",
    "weights-untouched": "a forward pass changes its own seen",
    "registered-tensors": "lm_head.kept: neither parameter nor buffer",
    "state-round-trip": "something that it computes with is not in there",
    "tied-weights": "are equal and not tied",
    "tokenization": "expected",
}

LAWS = [name for name, check in CHECKS.items() if check.searches]


def test_every_law_has_a_broken_candidate() -> None:
    assert set(BROKEN) == set(LAWS)


@pytest.mark.parametrize("name", LAWS)
def test_the_law_catches_its_broken_candidate(name: str) -> None:
    result = run(CHECKS[name], BROKEN[name], "tiny", "cpu", "float32")
    assert result.outcome in ("fail", "crash"), result.reason
    assert result.counterexample
    batch = result.counterexample.example.batch
    assert batch.size <= 2
    assert batch.length <= 8
    assert WORDS[name] in result.reason


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", LAWS)
def test_the_law_lets_an_unusual_but_correct_candidate_through(name: str, dtype: str) -> None:
    result = run(CHECKS[name], UNUSUAL.get(name, Candidate(computes="float32")), "tiny", "cpu", dtype)
    assert result.outcome == "pass", result.reason


@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_planted_is_caught_by_the_check_that_is_meant_for_it_and_shrunk(plant: str) -> None:
    candidate, check, (rows, tokens) = PLANTED[plant]
    result = run(CHECKS[check], candidate, "tiny", "cpu", "float32")
    assert result.outcome == "fail", result.reason
    assert result.counterexample
    batch = result.counterexample.example.batch
    assert batch.size <= rows
    assert batch.length <= tokens
