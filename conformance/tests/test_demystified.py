"""The third seed implementation: corrected it conforms, and as written its declared known failures are exactly its mistakes."""

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest
from torch import nn

from conformance import check
from conformance.checks.catalogue import CHECKS
from conformance.checks.check import USUAL, Request
from conformance.checks.known_failures import declared, expected
from conformance.checks.run_check import run_check
from conformance.implementations import demystified_as_written as written
from conformance.implementations.demystified import demystified
from conformance.implementations.demystified_as_written import demystified_as_written
from conformance.results.case import KnownFailure
from conformance.results.result import Result
from conformance.tests.optional_paths import generated

VALUES = [e for e in declared(demystified_as_written) if e.check == "values" and e.activation]


def _with_epsilon(a: Any) -> nn.Module:
    model = written.build(a)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = a.layer_norm_eps
    return model


def _with_another_mistake(a: Any) -> nn.Module:
    model = written.build(a)
    model.bert.encoder_blocks[0].feed_forward.activation = nn.GELU("tanh")  # type: ignore[union-attr, index]
    return model


@pytest.fixture(scope="module")
def judged() -> Result:
    return check(demystified_as_written, "sinusoidal")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_corrected_network_conforms(dtype: str) -> None:
    result = check(demystified, "sinusoidal", dtype=dtype)
    assert result.conforms, result.reason
    assert result.coverage == (40, 42)


def test_a_network_of_odd_width_conforms_and_is_too_narrow_for_the_table_as_written() -> None:
    arrays = {"input_ids": [[5, 6, 7], [8, 9, 10]], "token_type_ids": [[1, 1, 2], [1, 2, 2]]}
    golden = generated("sinusoidal", arrays, hidden_size=15, num_attention_heads=3, intermediate_size=60)
    assert check(demystified, golden).conforms
    result = check(demystified_as_written, golden)
    assert (result.outcome, "its width is even" in result.reason) == ("skip", True), result


def test_as_written_each_mistake_is_named_at_its_activations_and_nothing_else_is(judged: Result) -> None:
    failing = {v.activation for v in judged.verdicts if v.outcome == "fail"}
    norms = {f"encoder.layer.{i}.{part}output.LayerNorm" for i in (0, 1) for part in ("", "attention.")}
    assert failing == {"embeddings.position_embeddings", "cls.seq_relationship.loss", *norms}
    result = expected(judged, VALUES)
    assert (result.outcome, result.exit_code) == ("xfail", 0)
    assert {v.activation for v in result.verdicts if v.outcome == "xfail"} == failing
    assert "one LayerNorm serves both residuals" in result.reason


def _known(activation: str, fault: str | None = None) -> KnownFailure:
    return KnownFailure("values", "a reason", activation=activation, fault=fault)


NO_MISTAKE = _known("embeddings.position_embeddings", "sinusoid-halves")
PASSES = _known("cls.predictions.decoder")


@pytest.mark.parametrize(
    ("entries", "outcome", "words"),
    [
        *(([e for e in VALUES if e is not left_out], "fail", "that are not declared") for left_out in VALUES),
        *(([*VALUES, e], "xpass", str(e)) for e in (NO_MISTAKE, PASSES, _known("embeddings.*", "positions-missing"))),
        ([*VALUES, _known("*.scores")], "xfail", ""),  # An activation that is not observed.
    ],
)
def test_an_undeclared_mistake_fails_and_one_that_does_not_occur_is_reported_for_removal(
    judged: Result, entries: list[KnownFailure], outcome: str, words: str
) -> None:
    result = expected(judged, entries)
    assert (result.outcome, result.exit_code) == (outcome, 0 if outcome == "xfail" else 1)
    assert words in result.reason


def _result(name: str) -> Result:
    return run_check(Request.of(demystified_as_written, "sinusoidal", "cpu", "float32", name, plan=replace(USUAL, depth="screen")))


def test_every_check_that_fails_or_crashes_has_a_known_failure_declared() -> None:
    entries = declared(demystified_as_written)
    skipped = {"length-refused", "tied-weights", "tokenization"}
    passed = {"data-labels", "learning"}  # Its labels are correct by its own conventions, and it learns.
    assert {name for name in CHECKS if any(fnmatchcase(name, e.check) for e in entries)} == set(CHECKS) - skipped - passed


DATA = {
    "data-layout": ("the last token is not [SEP]", "the mask hides tokens"),
    "data-choice": ("have their first two pieces chosen alike",),
    "data-replacement": ("random tokens are special ones", "are both [MASK] or both not"),
    "data-pairs": ("a pair labelled as not next is the next",),
}


@pytest.mark.parametrize("name", DATA)
def test_each_mistake_in_its_data_is_found_and_no_other(name: str) -> None:
    result = _result(name)
    reasons = [reason for reason in result.reason.split("; ") if not reason.startswith("the first is row")]
    assert len(reasons) == len(DATA[name])
    assert all(words in reason for words, reason in zip(DATA[name], reasons, strict=True))
    assert expected(result, declared(demystified_as_written)).outcome == "xfail"


# Without `outputs` and `stages`, whose failures take long to explain.
OTHERS = ["initialization", "data-labels", *(name for name, check in CHECKS.items() if check.searches)]


@pytest.mark.landing(name=OTHERS[::4])
@pytest.mark.parametrize("name", OTHERS)
def test_each_declared_failure_of_a_check_occurs(name: str) -> None:
    outcome = expected(_result(name), declared(demystified_as_written)).outcome
    assert outcome == "pass" if name == "data-labels" else outcome in ("xfail", "skip")


@pytest.mark.landing(name="schedule")
@pytest.mark.parametrize("name", ["optimizer-step", "schedule", "loss-curve"])
def test_its_trainer_fails_as_declared(name: str) -> None:
    assert expected(_result(name), declared(demystified_as_written)).outcome == "xfail"


def test_a_known_failure_of_values_does_not_excuse_a_broken_contract(judged: Result) -> None:
    broken = replace(judged, by_values=False, reason="required activations are not exposed")
    assert expected(broken, VALUES) == broken
    crashed = replace(judged, outcome="crash", by_values=False, reason="out of luck")
    assert expected(crashed, [PASSES]) == crashed


def test_a_repaired_mistake_is_reported_and_a_further_one_is_a_failure_at_its_place() -> None:
    repaired = expected(check(replace(demystified_as_written, build=_with_epsilon), "sinusoidal"), VALUES)
    assert (repaired.outcome, "epsilon" in repaired.reason) == ("xpass", True)
    result = expected(check(replace(demystified_as_written, build=_with_another_mistake), "sinusoidal"), VALUES)
    assert result.outcome == "fail"
    assert [v.activation for v in result.verdicts if v.outcome == "fail"] == ["encoder.layer.0.intermediate.intermediate_act_fn"]
