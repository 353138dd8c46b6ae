"""Hostile and careless candidates: each is reported correctly, no other result is affected, and nothing wrong passes."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from conformance import Unsupported, check, golden_of, load_golden
from conformance.candidates.arrays import Described, described
from conformance.checks.check import Request
from conformance.checks.run_check import run_check
from conformance.cli import main
from conformance.errors import CandidateError
from conformance.implementations.hugging_face import HuggingFace
from conformance.implementations.making_bert import making_bert
from conformance.model.batch import Batch
from conformance.oracle.accumulation import Accumulation
from conformance.report.output_formats import REPORT_FORMATS
from conformance.report.run import document
from conformance.results.to_records import results_of
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


class Text(str):
    __slots__ = ()
    __format__ = __str__ = _raises(ValueError("no text"))


class OddError(Exception):
    def __str__(self) -> str:
        return Text("odd")


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


def _array(error: BaseException | None = None, **attributes: Any) -> Any:
    """Return an object with `__dlpack__` that raises an error, and with other attributes."""
    device = {"__dlpack__": _raises(error or OSError("x")), "__dlpack_device__": lambda _: (1, 0)}
    return type("Array", (), {**device, **attributes})()


def _claiming(kind: type) -> Any:
    return type("Array", (), {"__class__": property(lambda _: kind)})()


class Shapeless(np.ndarray):
    shape = property(_raises(ValueError("no shape")))  # type: ignore[assignment]


class Typeless(torch.Tensor):
    dtype = property(_raises(SystemExit("no dtype")))  # type: ignore[assignment]


class Misshapen(torch.Tensor):
    shape = property(lambda _: (3, 32))  # type: ignore[assignment]


# Values that are no arrays, or whose code raises or lies, with words of the reason.
NO_ARRAYS: list[tuple[Any, str]] = [
    (None, "a NoneType is no array"),
    ([1.0], "a list is no array"),
    (_array(layout=property(_raises(ValueError("no layout")))), "a Array cannot be read: OSError: x"),
    (_array(__getattribute__=_raises(OSError("none"))), "a Array cannot be read: OSError: none"),
    (_array(Mute()), "a Array cannot be read: Mute: its text raises ValueError"),
    (_array(OddError()), "a Array cannot be read: OddError: odd"),
    (_array(NamelessError("x")), "a Array cannot be read: NamelessError: x"),
    (_array(ValueError("x" * 10**6)), "characters more"),
    (_array(SystemExit(3)), "a Array cannot be read: SystemExit: 3"),
    (_array(GeneratorExit()), "a Array cannot be read: GeneratorExit"),
    (_claiming(np.ndarray), "a Array is no array"),
    (_claiming(Described), "a Array is no array"),
    (type("Array", (), {"__class__": property(_raises(ValueError("x")))})(), "a Array is no array"),
    (Nameless("Array", (), {})(), "a Array is no array"),
    (np.zeros(3).view(Shapeless), "dtype is float64, expected float32"),
    (torch.zeros(3).as_subclass(Typeless), "a Typeless cannot be read: SystemExit: no dtype"),
]


def test_values_that_are_no_arrays_or_whose_code_raises_or_lies_fail_alone_with_a_reason() -> None:
    words: dict[str, str] = {}

    def change(activations: dict[str, Any]) -> dict[str, Any]:
        names = [name for name in activations if "loss" not in name][-len(NO_ARRAYS) :]
        words.update(zip(names, (reason for _, reason in NO_ARRAYS), strict=True))
        return {**activations, **dict(zip(names, (value for value, _ in NO_ARRAYS), strict=True))}

    failed = {v.activation: v.reason for v in check(MadeOf(change), depth="screen").verdicts if v.outcome == "fail"}
    assert failed.keys() == words.keys()
    assert {name: reason for name, reason in failed.items() if words[name] not in reason} == {}


def test_values_of_another_shape_than_the_object_says_are_not_read() -> None:
    with pytest.raises(CandidateError, match=r"the values of a tensor of shape \(3, 32\) are not an array of that shape"):
        described(torch.zeros(3, 1).as_subclass(Misshapen)).read()


def test_invalid_names_of_activations_fail_alone_and_can_be_written_to_the_results() -> None:
    names: tuple[Any, ...] = (None, 3, "[/blue]x", "\ud800x", "a" * 10_000)
    result = check(MadeOf(lambda f: iter([*f.items(), *((name, f["pooler.dense"]) for name in names)])), depth="screen")  # type: ignore[arg-type, return-value]
    failed = [v.activation for v in result.verdicts if v.outcome == "fail"]
    assert len(failed) == len(names)
    json.dumps(failed).encode()


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
    for name in ("stages", "inputs-untouched"):
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


def test_partial_sums_are_not_underestimated_where_terms_cancel_within_a_block() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((4, 256)), rng.standard_normal((256, 3))
    left[:, 3], left[:, 20] = 1e3, 1e3
    right[3], right[20] = 1.0, -1.0
    exact = (np.cumsum(left[:, :, None] * right[None], 1) ** 2).sum(1)
    assert (Accumulation(left, right).squares > 0.5 * exact).all()


# Reports and commands.

HOSTILE = "```\n```\n# Conforms\n<script>alert(1)</script> | a | b \ufffe \x00"


def test_hostile_texts_are_escaped_in_markdown_and_junit() -> None:
    odd = MadeOf(lambda f: {**f, "`<b>|x`": f["pooler.dense"]})
    shown = document(results_of([check(_raises(RuntimeError(HOSTILE))), check(odd, depth="screen")]))
    text = REPORT_FORMATS["markdown"].text(shown)
    assert len(re.findall("^`{3,}", text, re.MULTILINE)[0]) == 4
    (row,) = [line for line in text.splitlines() if line.startswith("&#96;")]
    assert "<b>" not in row
    ElementTree.fromstring(REPORT_FORMATS["junit"].text(shown))


crashing = _raises(RuntimeError("out of luck"))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["trace", "hf-eager", "--dtype", "flot"], 2),
        (["trace", "hf-eager", "--device", "cuda:99"], 2),
        (["trace", "hf-eager", "--golden", "sinusoidal"], 2),
        (["diff", "hf-eager", f"{__name__}:crashing"], 1),
        (["report", "nowhere.jsonl"], 2),
        (["run", "hf-eager", "--golden", "tiny", "-o", "/proc/x"], 2),
        (["run", "hf-eager", "--text", "hello"], 2),
        (["run", "no_such_module:bert", "--golden", "tiny"], 2),
        (["replay", "nowhere.safetensors"], 2),
    ],
)
def test_a_usage_error_has_its_own_exit_code(arguments: list[str], code: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
