"""A registration that does not fit is an error, reported once; unusual registrations that fit are judged."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn

from conformance import (
    Architecture,
    Batch,
    Layout,
    OutputMap,
    Tap,
    TorchImplementation,
    Unsupported,
    UsageError,
    check,
    load_golden,
    per_head,
    permuted,
    read_results,
    transposed,
)
from conformance.candidates.lookup import resolved
from conformance.candidates.registry import as_implementation
from conformance.checks.check import Plan, Request
from conformance.checks.run_check import run_check
from conformance.cli import main
from conformance.errors import CandidateNameError
from conformance.implementations.making_bert import making_bert
from conformance.suite.parametrize import BoundCheck, CheckError
from conformance.tests.sample_records import report

QUERY = "bert.encoder.layer.{layer}.attention.self.query.weight"
OURS = "transformer.{layer}.attention.attention.project_query.weight"


CHECKPOINT = load_golden("tiny").checkpoint


def changed(change: Callable[[Any], Any], **table: Any) -> TorchImplementation:
    """Return Making Bert with its module changed after it is built."""

    def build(a: Architecture) -> nn.Module:
        model = making_bert.build(a)
        change(model)
        return model

    return replace(making_bert, build=build, **table)


class HeadKernels(nn.Module):
    """A projection whose weight has shape (heads, in, d)."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, size, size // heads))
        self.bias = nn.Parameter(torch.empty(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bsi,hid->bshd", x, self.weight).flatten(2) + self.bias


def _with_head_kernels(model: Any) -> None:
    for layer in model.transformer:
        layer.attention.attention.project_query = HeadKernels(4, 32)


@pytest.mark.parametrize(("axes", "outcome"), [((0, 2, 1), "pass"), ((1, 2, 0), "error"), ((1, 0), "error")])
def test_a_weight_of_heads_in_and_d_is_packed_by_permuted_and_other_axes_do_not_fit(axes: tuple[int, ...], outcome: str) -> None:
    parameters = {**making_bert.parameters, OURS: permuted(per_head(QUERY), axes)}
    result = check(changed(_with_head_kernels, parameters=parameters))
    assert result.outcome == outcome, result.reason
    assert outcome == "pass" or "transformer.0.attention.attention.project_query.weight" in result.reason


def _with_a_head_more(model: Any) -> None:
    model.next_token = nn.Linear(32, 2)


def _with_a_head_more_that_acts(model: Any) -> None:
    _with_a_head_more(model)
    model.transformer[1].register_forward_hook(lambda _m, _i, x: x + model.next_token.bias.sum() + 1)


def test_a_parameter_missing_from_the_checkpoint_is_refused_unless_ignored() -> None:
    assert "next_token.weight (2, 32) is not mapped; map it, or name it in `ignored`" in check(changed(_with_a_head_more)).reason
    assert check(changed(_with_a_head_more, ignored=("next_token.*",))).outcome == "pass"


def test_an_ignored_parameter_with_an_effect_fails_at_its_place() -> None:
    result = check(changed(_with_a_head_more_that_acts, ignored=("next_token.*",)))
    assert result.outcome == "fail"
    assert {v.activation for v in result.origins} == {"cls.predictions.transform.dense"}


@pytest.mark.parametrize("function", [lambda a: None, lambda vocab, hidden, layers, heads: None])
def test_a_function_with_other_arguments_is_refused_with_the_expected_signature(function: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r"called with \(checkpoint, device, dtype\), and this one takes \((a|vocab, .*)\)"):
        as_implementation(function)


def test_an_activation_missing_from_this_network_is_distinguished_from_one_of_no_network() -> None:
    words = {
        "sentence_embedding": "this network has no sentence_embedding, which a network with pooling='mean' has; leave it out",
        "qa_outputs": "a network with heads=('question_answering',) has",
        "encoder.layer.0.crossattention.self.query": "a network with is_decoder=True, add_cross_attention=True has",
        "last_hidden_state": "last_hidden_state is called encoder.layer.1.output.LayerNorm here",
        "embeddings.LayerNrom": "unknown activation 'embeddings.LayerNrom'; did you mean 'embeddings.LayerNorm'",
    }
    result = check(lambda checkpoint, device, dtype: lambda batch: dict.fromkeys(words, np.zeros(1, np.float32)), "tiny")
    assert result.outcome == "fail"
    reasons = {v.activation: v.reason for v in result.verdicts if v.outcome == "fail"}
    assert reasons.keys() == words.keys()
    assert {name: reason for name, reason in reasons.items() if words[name] not in reason} == {}


def in_numpy(checkpoint: Any, device: str, dtype: str) -> Callable[[Any], Any]:
    """A candidate that reads only NumPy arrays and supports only learned positions."""
    if checkpoint.architecture.position_embedding_type != "absolute":
        raise Unsupported("it has learned positions alone")
    runner = making_bert.prepare(checkpoint, device, dtype)

    def called(batch: Any) -> Any:
        b = batch.filled().numpy()
        return runner(Batch(b.input_ids, b.token_type_ids + 0, b.attention_mask + 0).on(device))

    return called


def test_a_function_receives_filled_numpy_batches_in_every_search_and_refuses_what_it_does_not_support() -> None:
    for asked in ("token-types-omitted", "mask-omitted"):
        assert run_check(Request.of(in_numpy, "tiny", "cpu", "float32", asked, plan=Plan(2))).outcome == "pass"
    refused = check(in_numpy, "sinusoidal")
    assert (refused.outcome, refused.reason) == ("skip", "it has learned positions alone")


unfit = replace(making_bert, activations={**making_bert.activations, "embedding.layer_norn": "embeddings.LayerNorm"})
_WITHOUT_DECODER = {tap: name for tap, name in making_bert.activations.items() if name != "cls.predictions.decoder"}
_UNFIT: dict[str, Any] = {  # by words of the reason
    "no submodule 'embedding.layer_norn'; did you mean 'embedding.layer_norm'?": unfit,
    "cls.predictions.decoder: nothing at 3 of a tuple": replace(
        making_bert, activations={**_WITHOUT_DECODER, Tap("lm_head", element=3): "cls.predictions.decoder"}
    ),
    "2 tensors are shown for 1": replace(
        making_bert, activations={**making_bert.activations, "lm_head": OutputMap("classifier", lambda x: (x, x))}
    ),
    "mapped, though named in `ignored`: lm_head.mlp.weight": replace(making_bert, ignored=["lm_head.*"]),
}


@pytest.mark.parametrize("words", _UNFIT)
@pytest.mark.parametrize("asked", ["values", "padding-length"])
def test_a_table_or_tap_that_does_not_fit_is_an_error_of_registration_in_every_check(words: str, asked: str) -> None:
    result = run_check(Request.of(_UNFIT[words], "tiny", "cpu", "float32", asked, plan=Plan(2)))
    assert (result.outcome, result.exit_code) == ("error", 1), result.reason
    assert "registration: " in result.reason
    assert words in result.reason


def test_parameter_tables_that_do_not_fit_an_architecture_are_a_skip() -> None:
    result = check(replace(making_bert, supported=lambda *_: None), "sinusoidal")
    assert (result.outcome, result.declared) == ("skip", False)
    assert "which this architecture lacks" in result.reason


def test_an_error_of_registration_is_reported_once_with_all_checks_that_it_prevents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    goldens = [word for name in ("tiny", "deep", "edges") for word in ("--golden", name)]
    command = ["run", "conformance.tests.test_registration:unfit", *goldens, "--in-process", "-o", str(tmp_path)]
    assert main(command) == 1
    capsys.readouterr()
    results = read_results(tmp_path / "results.jsonl")
    assert results.footer
    assert (results.footer.ran, results.footer.outcomes) == (0, {"error": 3})
    for form in ("text", "markdown"):
        rendered = " ".join(report(form, results).replace("\\", "").split())
        assert rendered.count("no submodule 'embedding.layer_norn'; did you mean 'embedding.layer_norm'?") == 1
        assert "the same error in 2 more checks: on deep, cpu, float32; on edges, cpu, float32" in rendered
    page = report("html", results)
    assert "could not be judged" in page
    assert "does not conform" not in page
    suite = ElementTree.fromstring(report("junit", results))
    assert len(suite.findall(".//error")) == 3
    assert main([*command, "--resume"]) == 1
    assert read_results(tmp_path / "results.jsonl").footer == results.footer


def test_in_pytest_it_is_an_error_and_not_a_failure_to_conform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.suite.parametrize.record", lambda *_: None)  # This session counts no checks.
    bound = BoundCheck(Request.of(unfit))
    with pytest.raises(CheckError, match="registration: the table of activations does not fit"):
        bound()


def test_an_object_that_is_not_in_a_file_is_answered_with_its_candidates(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nWIDTH = 3\ndef helper(): pass\nclass Bert(torch.nn.Module): pass\n"
        "class Engine:\n    def prepare(self, checkpoint, device, dtype): pass\n"
    )
    with pytest.raises(CandidateNameError, match=r"it has Bert, Engine$"):
        resolved(f"{tmp_path / 'mine.py'}:nosuch")


@pytest.mark.parametrize("layout", [permuted(per_head("q"), (2, 0, 1)), transposed(per_head("q")), permuted("q", (1, 0))])
def test_unpacking_a_permuted_parameter_restores_it_and_other_axes_are_refused(layout: Layout) -> None:
    weight = np.arange(32.0 * 32).reshape(32, 32)
    (back,) = layout.unpack(layout.pack([weight], CHECKPOINT.architecture), [(32, 32)], CHECKPOINT.architecture)
    assert (back == weight).all()
    with pytest.raises(UsageError, match=r"the axes \(0, 0\), expected each of 0 to n - 1 once"):
        permuted("q", (0, 0))
