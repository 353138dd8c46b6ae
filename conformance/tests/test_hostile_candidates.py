"""Hostile and careless candidates: each is reported correctly, no other result is affected, and nothing wrong passes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conformance import Unsupported, check, golden_of, load_golden
from conformance.checks.check import Request
from conformance.checks.run_check import run_check
from conformance.implementations.hugging_face import HuggingFace
from conformance.implementations.making_bert import making_bert
from conformance.model.batch import Batch
from conformance.tests.planted_mistakes import MadeOf


def _raises(error: Any) -> Any:
    def raising(*_: Any, **__: Any) -> Any:
        raise error

    return raising


class Mute(Exception):
    __str__ = __repr__ = _raises(ValueError("no text"))


class MuteRefusal(Unsupported):
    __str__ = _raises(ValueError("no text"))


class Nameless(type):
    __name__ = property(_raises(ValueError("no name")))  # type: ignore[assignment]


class NamelessError(Exception, metaclass=Nameless):
    pass


# Exceptions.


def _with_a_note() -> Exception:
    error = ValueError("the cause")
    error.add_note("a note")
    return error


@pytest.mark.parametrize("where", ["prepare", "call", "stream"])
def test_no_exception_of_a_candidate_ends_the_run(where: str) -> None:
    for error in (SystemExit(0), GeneratorExit(), MemoryError(), BaseException("x"), StopIteration(), Mute(), NamelessError("x")):
        fail = _raises(error)
        in_a_run = fail if where == "call" else lambda _, fail=fail: (fail() for _ in range(1))
        result = check(fail if where == "prepare" else lambda *_, run=in_a_run: run)
        assert (result.outcome, result.exit_code, bool(result.reason)) == ("crash", 1, True), type(error)


@pytest.mark.parametrize(
    ("error", "message", "further"),
    [
        (ValueError("the cause"), "ValueError: the cause", "in raising"),
        (_with_a_note(), "ValueError: the cause", "a note"),
        (ExceptionGroup("several", [KeyError("a"), OSError("b")]), "ExceptionGroup: several (2 sub-exceptions)", "OSError: b"),
        (SyntaxError("bad", ("f.py", 1, 1, "x =", 1, 2)), "SyntaxError: bad", 'File "f.py", line 1'),
    ],
    ids=lambda given: type(given).__name__,
)
def test_the_reason_of_a_crash_begins_with_the_message_of_the_exception(error: Exception, message: str, further: str) -> None:
    first, rest = check(_raises(error)).reason.split("\n", 1)
    assert first == message
    assert further in rest


def test_a_skip_has_a_reason_even_if_the_candidate_gives_none_and_an_invalid_reason_is_no_skip() -> None:
    given = {error: check(_raises(error)) for error in (Unsupported, MuteRefusal())}
    assert {result.outcome for result in given.values()} == {"skip"}
    assert given[Unsupported].reason == "Unsupported was raised without a reason"
    assert all(result.reason for result in given.values())
    for reason in ("", False, True):
        candidate = HuggingFace("eager")
        candidate.supports = lambda *_, reason=reason: reason  # type: ignore[method-assign]
        assert check(candidate).outcome == "fail"


# A candidate that starts a program that is not installed, like a library that compiles at run time and finds no compiler.


def _compiled(*_: Any) -> Any:
    import subprocess

    subprocess.run(["no-such-compiler", "-shared"], check=True)


def _wrapped(*_: Any) -> Any:
    try:
        _compiled()
    except OSError as error:
        raise RuntimeError("no usable device") from error


def _in_a_ring(*_: Any) -> Any:
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


@pytest.mark.parametrize(
    ("candidate", "is_missing"),
    [(_compiled, True), (_wrapped, True), (lambda *_: Path("no such file").read_text(), False), (_in_a_ring, False)],
)
def test_a_missing_program_is_named_with_the_remedy_and_other_errors_are_no_missing_program(
    candidate: Any, is_missing: bool
) -> None:
    result = check(candidate, "tiny")
    assert result.outcome == "crash"
    words = "the candidate starts the program 'no-such-compiler', which is not found: install it"
    assert (words in result.reason) == ("starts the program" in result.reason) == is_missing


# Activations.


def _late(activations: dict[str, Any], factor: float) -> Iterator[tuple[str, Any]]:
    """Yield layer outputs last, with everything of the second layer multiplied by `factor`."""
    ends = [f"encoder.layer.{i}.output.LayerNorm" for i in range(2)]
    for name, value in activations.items():
        if name not in ends:
            yield name, value * factor if "layer.1" in name else value
    for name in ends:
        yield name, activations[name]


@pytest.mark.parametrize(
    "change",
    [
        lambda f: _late(f, 1.0),
        lambda f: dict(reversed(list(f.items()))),
        lambda f: {n: np.float32(v) if v.ndim == 0 else v.numpy() for n, v in f.items()},
    ],
    ids=["layer outputs late", "in reverse order", "losses as NumPy scalars"],
)
def test_activations_in_any_order_and_kind_are_all_judged_and_conform(change: Callable[[Any], Any]) -> None:
    result = check(MadeOf(change))
    assert result.conforms, result.reason
    assert len(result.verdicts) == 47


def test_a_mapping_in_reverse_order_passes_other_checks_and_late_layer_outputs_that_are_wrong_fail() -> None:
    for name in ("stages", "moments", "inputs-untouched"):
        backwards = MadeOf(lambda f: dict(reversed(list(f.items()))))
        assert run_check(Request.of(backwards, "tiny", "cpu", "float32", name)).outcome == "pass", name
    assert check(MadeOf(lambda f: _late(f, 1.5)), depth="screen").outcome == "fail"  # type: ignore[arg-type, return-value]


def test_outputs_are_required_and_activations_of_a_layer_are_not_returned_by_call() -> None:
    words = "embeddings.word_embeddings"
    hidden = check(MadeOf(lambda f: {words: f[words]}))
    assert (hidden.outcome, "no output is exposed" in hidden.reason) == ("fail", True)
    name = "encoder.layer.0.attention.self.probs"
    late = replace(making_bert, call=lambda model, batch: {name: making_bert.call(model, batch)})
    assert "too late to be judged by layer; tap it" in check(late).reason
    assert check(HuggingFace("eager"), require=["*.scroes"]).exit_code == 2


# What a candidate changes.


def test_a_candidate_cannot_alter_the_weights_used_to_judge_it() -> None:
    def prepare(checkpoint: Any, device: str, dtype: str) -> Any:
        checkpoint.weights["bert.encoder.layer.0.attention.self.query.weight"][...] *= 3

    assert check(prepare).outcome == "crash"
    assert check(HuggingFace("eager")).conforms


def test_torch_settings_are_restored_after_a_candidate() -> None:
    def prepare(checkpoint: Any, device: str, dtype: str) -> Any:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_num_threads(1)
        torch.set_autocast_enabled("cpu", True)
        torch.use_deterministic_algorithms(False)
        torch.manual_seed(1)
        raise RuntimeError("gone")

    def settings() -> tuple[Any, ...]:
        deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        places = torch.get_default_device(), torch.get_num_threads(), torch.is_autocast_enabled("cpu")
        return torch.get_default_dtype(), *places, deterministic, torch.get_rng_state().tolist()

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        before = settings()
        assert check(prepare).outcome == "crash"
        assert settings() == before
    finally:
        torch.use_deterministic_algorithms(False)
    assert not torch.overrides._get_current_function_mode_stack()  # This setting would keep other candidates off their fast paths.


# What is judged.


def test_a_sentence_whose_first_token_is_padding_is_neither_blamed_nor_passed() -> None:
    batch = Batch.of({"input_ids": [[1, 2, 3], [4, 5, 6]], "attention_mask": [[0, 1, 1], [0, 0, 1]]})
    result = check(HuggingFace("eager"), golden_of("left", load_golden("tiny").checkpoint, {"left": batch}))
    assert result.conforms, result.reason
    (pooled,) = [v for v in result.verdicts if v.activation == "pooler.dense"]
    assert pooled.outcome == "not_observed"
    assert "first token" in pooled.reason


# Reports and commands.
