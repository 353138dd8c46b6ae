"""Hostile and careless candidates: each is reported correctly, no other result is affected, and nothing wrong passes."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from conformance import OutputMap, Unsupported, check, golden_of, load_golden
from conformance.benchmarks.detection.bert import Candidate
from conformance.candidates.arrays import Described, described
from conformance.checks.catalogue import CHECKS
from conformance.checks.run_check import run_check
from conformance.cli import main
from conformance.errors import CandidateError
from conformance.implementations.hugging_face import HuggingFace
from conformance.implementations.making_bert import making_bert
from conformance.model.batch import Batch
from conformance.oracle.accumulation import Accumulation
from conformance.report.junit import junit
from conformance.report.output_formats import REPORT_FORMATS
from conformance.results.file import read_results
from conformance.results.to_records import results_of
from conformance.tests.planted_mistakes import Planted, epsilon

TINY = load_golden("tiny")
Files = dict[str, Path]


class Stream:
    """Hugging Face's activations, passed through `change`."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        runner = HuggingFace("eager").prepare(checkpoint, device, dtype)
        return lambda batch: self.change(dict(runner(batch)))


def _late(found: dict[str, Any], factor: float) -> Iterator[tuple[str, Any]]:
    """Yield layer outputs last, with everything of the second layer multiplied by `factor`."""
    ends = [f"encoder.layer.{i}.output.LayerNorm" for i in range(2)]
    for name, value in found.items():
        if name not in ends:
            yield name, value * factor if "layer.1" in name else value
    for name in ends:
        yield name, found[name]


def test_layer_outputs_that_arrive_late_are_judged() -> None:
    assert check(Stream(lambda f: _late(f, 1.5))).outcome == "fail"
    right = check(Stream(lambda f: _late(f, 1.0)))
    assert len(right.verdicts) == 47
    assert right.conforms, right.reason


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), MemoryError(), BaseException("x"), StopIteration()])
@pytest.mark.parametrize("where", ["prepare", "call", "stream"])
def test_no_exception_of_a_candidate_ends_the_run(where: str, error: BaseException) -> None:
    def fail() -> Any:
        raise error

    def prepare(checkpoint: Any, device: str, dtype: str) -> Any:
        if where == "prepare":
            fail()
        return lambda batch: fail() if where == "call" else (fail() for _ in range(1))

    result = check(prepare)
    assert (result.outcome, result.exit_code) == ("crash", 1)


def _with_a_note() -> Exception:
    error = ValueError("the cause")
    error.add_note("a note")
    return error


@pytest.mark.parametrize(
    ("error", "message", "further"),
    [
        (ValueError("the cause"), "ValueError: the cause", "in prepare"),
        (_with_a_note(), "ValueError: the cause", "a note"),
        (ExceptionGroup("several", [KeyError("a"), OSError("b")]), "ExceptionGroup: several (2 sub-exceptions)", "OSError: b"),
        (SyntaxError("bad", ("f.py", 1, 1, "x =", 1, 2)), "SyntaxError: bad", 'File "f.py", line 1'),
    ],
    ids=lambda given: type(given).__name__,
)
def test_the_reason_of_a_crash_begins_with_the_message_of_the_exception(error: Exception, message: str, further: str) -> None:
    def prepare(checkpoint: Any, device: str, dtype: str) -> Any:
        raise error

    first, rest = check(prepare).reason.split("\n", 1)
    assert first == message
    assert further in rest


def test_a_candidate_cannot_alter_the_weights_used_to_judge_it() -> None:
    def prepare(checkpoint: Any, device: str, dtype: str) -> Any:
        checkpoint.weights["bert.encoder.layer.0.attention.self.query.weight"][...] *= 3
        return HuggingFace("eager").prepare(checkpoint, device, dtype)

    assert check(prepare).outcome == "crash"
    assert check(HuggingFace("eager")).conforms


def test_a_candidate_that_shows_no_output_does_not_conform() -> None:
    result = check(Stream(lambda f: {"embeddings.word_embeddings": f["embeddings.word_embeddings"]}))
    assert result.outcome == "fail"
    assert "no output is exposed" in result.reason


@pytest.mark.parametrize("value", [None, "text", [1.0], object(), torch.eye(2).to_sparse(), torch.empty(2, device="meta")])
def test_a_value_that_is_not_an_array_fails_alone(value: Any) -> None:
    result = check(Stream(lambda f: {**f, "pooler.dense": value}))
    assert [v.activation for v in result.verdicts if v.outcome == "fail"] == ["pooler.dense"]


def _raises(error: Any) -> Any:
    def raising(*_: Any, **__: Any) -> Any:
        raise error

    return raising


class Mute(Exception):
    __str__ = __repr__ = _raises(ValueError("no text"))


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


def _array(error: BaseException | None = None, **attributes: Any) -> Any:
    """Return an object with `__dlpack__` that raises an error, and with other attributes."""
    device = {"__dlpack__": _raises(error or OSError("x")), "__dlpack_device__": lambda _: (1, 0)}
    return type("Array", (), {**device, **attributes})()


class Shapeless(np.ndarray):
    shape = property(_raises(ValueError("no shape")))  # type: ignore[assignment]


class Typeless(torch.Tensor):
    dtype = property(_raises(SystemExit("no dtype")))  # type: ignore[assignment]


class Misshapen(torch.Tensor):
    shape = property(lambda _: (3, 32))  # type: ignore[assignment]


OF_ITS_OWN: dict[str, tuple[Any, str]] = {
    "an attribute raises": (_array(layout=property(_raises(ValueError("no layout")))), "a Array cannot be read: OSError: x"),
    "every attribute raises": (_array(__getattribute__=_raises(OSError("none"))), "a Array cannot be read: OSError: none"),
    "the exception has no text": (_array(Mute()), "a Array cannot be read: Mute: its text raises ValueError"),
    "the exception has a text of its own class": (_array(OddError()), "a Array cannot be read: OddError: odd"),
    "the exception has no name": (_array(NamelessError("x")), "a Array cannot be read: NamelessError: x"),
    "the exception has a long text": (_array(ValueError("x" * 10**6)), "characters more"),
    "it exits": (_array(SystemExit(3)), "a Array cannot be read: SystemExit: 3"),
    "it closes": (_array(GeneratorExit()), "a Array cannot be read: GeneratorExit"),
    "it claims to be an array": (type("Array", (), {"__class__": property(lambda _: np.ndarray)})(), "a Array is no array"),
    "it claims to be described": (type("Array", (), {"__class__": property(lambda _: Described)})(), "a Array is no array"),
    "its class raises": (type("Array", (), {"__class__": property(_raises(ValueError("x")))})(), "a Array is no array"),
    "its class has no name": (Nameless("Array", (), {})(), "a Array is no array"),
    "an array without a shape": (np.zeros(3).view(Shapeless), "dtype is float64, expected float32"),
    "a tensor without a dtype": (torch.zeros(3).as_subclass(Typeless), "a Typeless cannot be read: SystemExit: no dtype"),
}


@pytest.mark.parametrize("name", OF_ITS_OWN)
def test_an_object_whose_own_code_raises_or_lies_fails_alone_with_a_reason(name: str) -> None:
    value, words = OF_ITS_OWN[name]
    result = check(Stream(lambda f: {**f, "pooler.dense": value}), depth="screen")
    (failed,) = [v for v in result.verdicts if v.outcome == "fail"]
    assert failed.activation == "pooler.dense"
    assert words in failed.reason


def test_values_of_another_shape_than_the_object_says_are_not_read() -> None:
    with pytest.raises(CandidateError, match=r"the values of a tensor of shape \(3, 32\) are not an array of that shape"):
        described(torch.zeros(3, 1).as_subclass(Misshapen)).read()


class MuteRefusal(Unsupported):
    __str__ = _raises(ValueError("no text"))


@pytest.mark.parametrize("error", [Mute(), NamelessError("x"), MuteRefusal()])
def test_an_exception_without_a_text_ends_its_check_with_a_reason(error: Exception) -> None:
    def prepare(checkpoint: Any, device: str, dtype: str) -> Any:
        raise error

    result = check(prepare)
    assert result.outcome in ("crash", "skip")
    assert result.reason


@pytest.mark.parametrize("name", [None, 3, "[/blue]x", "\ud800x", "a" * 10_000])
def test_an_invalid_activation_name_fails_alone_and_can_be_written_to_the_results(name: Any, tmp_path: Path) -> None:
    result = check(Stream(lambda f: iter([*f.items(), (name, f["pooler.dense"])])))
    assert sum(v.outcome == "fail" for v in result.verdicts) == 1
    json.dumps(result.verdicts[-1].activation).encode()


def test_numpy_scalars_are_accepted_as_losses() -> None:
    def numbers(found: dict[str, Any]) -> dict[str, Any]:
        return {n: np.float32(v) if v.ndim == 0 else v.numpy() for n, v in found.items()}

    assert check(Stream(numbers)).conforms


def test_an_endless_stream_is_stopped() -> None:
    def endless(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        while True:
            yield from found.items()

    assert "more invalid activations than the network has" in check(Stream(endless)).reason


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
        random = torch.get_rng_state().tolist()
        places = torch.get_default_device(), torch.get_num_threads(), torch.is_autocast_enabled("cpu")
        return torch.get_default_dtype(), *places, deterministic, random

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        before = settings()
        assert check(prepare).outcome == "crash"
        assert settings() == before
    finally:
        torch.use_deterministic_algorithms(False)
    assert not torch.overrides._get_current_function_mode_stack()  # This setting would keep other candidates off their fast paths.


@pytest.mark.parametrize("reason", ["", False, True])
def test_an_empty_or_invalid_reason_of_supports_is_not_a_skip(reason: Any) -> None:
    candidate = HuggingFace("eager")
    candidate.supports = lambda *_: reason  # type: ignore[method-assign]
    assert check(candidate).outcome == "fail"


def test_a_skip_has_a_reason_even_if_the_candidate_gives_none() -> None:
    def prepare(checkpoint: Any, device: str, dtype: str) -> Any:
        raise Unsupported

    result = check(prepare)
    assert (result.outcome, result.reason) == ("skip", "Unsupported was raised without a reason")


def test_a_class_in_place_of_an_instance_is_reported() -> None:
    assert "is a class" in check(HuggingFace).reason


def test_a_sentence_whose_first_token_is_padding_is_neither_blamed_nor_passed() -> None:
    mask = np.array([[0, 1, 1], [0, 0, 1]])
    batch = Batch.of({"input_ids": [[1, 2, 3], [4, 5, 6]], "attention_mask": mask})
    left = golden_of("left", TINY.checkpoint, {"left": batch})
    result = check(HuggingFace("eager"), left)
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


def test_partial_sums_are_not_underestimated_when_terms_are_added_from_the_last_to_the_first() -> None:
    terms = np.array([[1e-2, -1e-2] * 16 + [1.0]])
    exact = (np.cumsum(terms[:, ::-1], 1) ** 2).sum(1)
    assert exact > 30 * (np.cumsum(terms, 1) ** 2).sum(1)
    assert (Accumulation(terms, np.ones((33, 1))).squares[:, 0] > 0.9 * exact).all()


def test_a_mapping_in_any_order_passes_every_check() -> None:
    backwards = Stream(lambda f: dict(reversed(list(f.items()))))
    for name in ("values", "stages", "moments", "inputs-untouched"):
        assert run_check(CHECKS[name], backwards, "tiny", "cpu", "float32").outcome == "pass", name


def test_an_activation_of_a_layer_returned_by_call_is_reported_as_too_late() -> None:
    name = "encoder.layer.0.attention.self.probs"
    late = replace(making_bert, call=lambda model, batch: {name: making_bert.call(model, batch)})
    assert "too late to be judged by layer; tap it" in check(late).reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ignored": ["lm_head.*"]}, "mapped, though named in `ignored`: lm_head.mlp.weight"),
        (
            {"activations": {**making_bert.activations, "lm_head": OutputMap("classifier", lambda t: (t, t))}},
            "2 tensors are shown for 1",
        ),
        ({"parameters": {**making_bert.parameters, "lm_hed.x": "cls.predictions.decodr"}}, "unknown parameter: cls"),
    ],
)
def test_malformed_entries_of_a_registration_are_errors_instead_of_weaker_checks(change: dict[str, Any], words: str) -> None:
    result = check(replace(making_bert, **change))
    assert result.outcome == "error"
    assert words in result.reason


def test_parameter_tables_that_do_not_fit_an_architecture_are_a_skip() -> None:
    result = check(replace(making_bert, supported=lambda *_: None), "sinusoidal")
    assert (result.outcome, result.declared) == ("skip", False)
    assert "which this architecture lacks" in result.reason


def test_required_activations_that_match_no_name_are_a_usage_error() -> None:
    assert check(HuggingFace("eager"), require=["*.scroes"]).exit_code == 2


@pytest.mark.parametrize("value", [1e-9, 1e-3, 0.1, 10.0])
def test_a_wrong_epsilon_of_any_size_is_estimated(value: float) -> None:
    (verdict,) = check(Planted(epsilon(0, value))).origins
    assert verdict.local
    (fault,) = verdict.local.named
    assert fault.estimate
    assert fault.estimate.value == pytest.approx(value, rel=0.05)


HOSTILE = "```\n```\n# Conforms\n<script>alert(1)</script> | a | b \ufffe \x00"


def test_hostile_texts_are_escaped_in_markdown_and_junit() -> None:
    def prepare(checkpoint: Any, device: str, dtype: str) -> Any:
        raise RuntimeError(HOSTILE)

    results = results_of([check(prepare), check(Stream(lambda f: {**f, "`<b>|x`": f["pooler.dense"]}))])
    text = REPORT_FORMATS["markdown"].of_results(results)
    fences = re.findall("^`{3,}", text, re.MULTILINE)
    assert len(fences[0]) == 4
    rows = [line for line in text.splitlines() if line.startswith("&#96;")]
    assert len(rows) == 1
    assert "<b>" not in rows[0]
    ElementTree.fromstring(junit(results))


@pytest.fixture(scope="module")
def result_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the results of a pass and of a failure of candidates with the same name."""
    files = {}
    for name, candidate in (("pass", Candidate()), ("fail", Planted(epsilon(0)))):
        folder = tmp_path_factory.mktemp(name)
        globals()["same"] = candidate
        main(
            [
                "run",
                "-i",
                "conformance.tests.test_hostile_candidates:same",
                "--golden",
                "tiny",
                "--in-process",
                "--out",
                str(folder),
            ]
        )
        files[name] = folder / "results.jsonl"
    return files


def test_failures_of_one_run_are_not_reported_under_the_pass_of_another(result_files: Files, tmp_path: Path, capsys: Any) -> None:
    elsewhere = tmp_path / "elsewhere.jsonl"
    elsewhere.write_text(result_files["pass"].read_text().replace('"device":"cpu"', '"device":"xpu"'))
    assert main(["report", str(elsewhere), str(result_files["fail"])]) == 1
    rendered = capsys.readouterr().out
    passed = rendered[rendered.index(": conforms") :]
    assert "first origin" not in passed


def test_concatenated_results_files_are_counted_together(result_files: Files, tmp_path: Path, capsys: Any) -> None:
    both = tmp_path / "both.jsonl"
    passed = result_files["pass"].read_bytes().replace(b'"device":"cpu"', b'"device":"xpu"')
    both.write_bytes(passed + result_files["fail"].read_bytes())
    assert main(["report", str(both)]) == 1
    assert "ran 2 of 2: 1 fail, 1 pass\n" in capsys.readouterr().out


def test_a_run_without_an_end_is_never_a_success(result_files: Files, tmp_path: Path) -> None:
    whole = result_files["pass"].read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(whole[: whole.index(b'{"kind":"footer"')])
    assert read_results(cut).checks[0].outcome == "pass"
    assert main(["report", str(cut)]) == 1


def test_a_check_that_became_worse_is_reported_though_no_activation_did(result_files: Files, tmp_path: Path, capsys: Any) -> None:
    crashed = tmp_path / "crashed.jsonl"
    passed = result_files["pass"].read_text()
    crashed.write_text(passed.replace('"check":"values","outcome":"pass"', '"check":"values","outcome":"crash"'))
    assert main(["diff", str(result_files["pass"]), str(crashed)]) == 1
    assert "worse" in capsys.readouterr().out


def test_an_activation_that_failed_before_and_is_hidden_now_is_not_an_improvement(
    result_files: Files, tmp_path: Path, capsys: Any
) -> None:
    hidden = tmp_path / "hidden.jsonl"
    failed = result_files["fail"].read_text()
    hidden.write_text(failed.replace('"outcome":"fail","role":"origin"', '"outcome":"not_observed","role":null'))
    assert main(["diff", str(result_files["fail"]), str(hidden)]) == 1
    assert "gone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["trace", "hf-eager", "--dtype", "flot"], 2),
        (["trace", "hf-eager", "--device", "cuda:99"], 2),
        (["trace", "hf-eager", "--golden", "sinusoidal"], 2),
        (["diff", "hf-eager", "conformance.tests.test_hostile_candidates:crashing"], 1),
        (["report", "nowhere.jsonl"], 2),
        (["run", "-i", "hf-eager", "--golden", "tiny", "--out", "/proc/x"], 2),
        (["run", "-i", "hf-eager", "--text", "hello"], 2),
        (["run", "-i", "no_such_module:bert", "--golden", "tiny"], 2),
        (["replay", "nowhere.safetensors"], 2),
    ],
)
def test_a_usage_error_is_one_line_with_its_own_exit_code(
    arguments: list[str], code: int, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code


def crashing(checkpoint: Any, device: str, dtype: str) -> Any:
    raise RuntimeError("out of luck")
