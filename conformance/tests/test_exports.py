"""Exported models: ours conform, the layers of a third-party archive are observed without its source, and each export mistake is
named."""

import io
import math
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance import Archive, Batch, Checkpoint, Result, check, golden_of, load_golden
from conformance.checks.check import Request
from conformance.checks.run_check import run_check
from conformance.cli import main
from conformance.implementations import exports
from conformance.implementations import inner_workings as inner
from conformance.implementations.demystified import demystified
from conformance.implementations.exports import Export
from conformance.implementations.hugging_face import HuggingFace, hf_sdpa
from conformance.implementations.inner_workings import inner_workings
from conformance.implementations.making_bert import making_bert
from conformance.implementations.torch_encoder import torch_encoder, torch_encoder_fast
from conformance.report.findings import findings
from conformance.results.file import read_results
from conformance.results.to_records import activation_records
from conformance.tests.export_mistakes import GOLDEN, MISTAKES, Called, batch_size_baked, length_baked, logits, module, traced

needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")), reason="pip install 'bert-conformance[onnx]'"
)

OURS = {
    "tiny": [
        exports.making_bert_traced, exports.making_bert_scripted, exports.inner_workings_traced, exports.inner_workings_scripted,
        exports.hf_traced, exports.hf_exported, torch_encoder, torch_encoder_fast,
    ],
    "sinusoidal": [exports.demystified_traced, exports.demystified_scripted],
}  # fmt: skip
CASES = [(i, golden) for golden, found in OURS.items() for i in found]


@pytest.mark.landing(
    implementation=[exports.making_bert_traced, exports.inner_workings_scripted, exports.hf_exported, torch_encoder_fast],
    dtype="float32",
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("implementation", "golden"), CASES, ids=lambda p: getattr(p, "name", p))
def test_the_export_conforms(implementation: Any, golden: str, dtype: str) -> None:
    result = check(implementation, golden, dtype=dtype)
    assert result.conforms, result.reason


@pytest.mark.landing(implementation=exports.making_bert_scripted)
@pytest.mark.parametrize("name", ["generated-batches", "batching", "mask-omitted", "token-types-omitted", "masked-row"])
@pytest.mark.parametrize(("implementation", "golden"), CASES, ids=lambda p: getattr(p, "name", p))
def test_the_export_works_at_other_lengths_and_batch_sizes(implementation: Any, golden: str, name: str) -> None:
    result = run_check(Request.of(implementation, golden, "cpu", "float32", name))
    assert result.outcome == "pass", result.reason


@needs_onnx
@pytest.mark.landing(golden="tiny", name="values")
@pytest.mark.parametrize(
    ("golden", "name"), [("tiny", "values"), ("tiny", "outputs"), ("tiny", "called-again"), ("tanh", "values")]
)
def test_the_onnx_export_conforms(golden: str, name: str) -> None:
    result = run_check(Request.of(exports.hf_onnx, golden, "cpu", "float32", name))
    assert result.outcome == "pass", result.reason


# A third-party archive: other names, inputs and outputs, without source.


class _Strange(nn.Module):
    """A model with none of Hugging Face's names."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.it = making_bert.module(checkpoint)

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        hidden = self.it.embedding(tokens, segments)
        for layer in self.it.transformer:
            hidden = layer(hidden, mask)
        return hidden


class _Nameless(_Strange):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return super().forward(a, b, c)


def _archive(path: Path, golden: str = "tiny", frozen: bool = False, of: type[_Strange] = _Strange) -> Path:
    ids = torch.arange(10).reshape(2, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.jit.trace(of(load_golden(golden).checkpoint), (ids, ids * 0, ids * 0 + 1))
        (torch.jit.freeze(made.eval()) if frozen else made).save(str(path))
    return path


@pytest.mark.parametrize("frozen", [False, True], ids=["parameters", "nameless constants"])
def test_the_layers_of_a_third_party_archive_are_observed(tmp_path: Path, frozen: bool) -> None:
    result = check(Archive(_archive(tmp_path / "strange.pt", "deep", frozen)), "deep", depth="screen")
    assert result.conforms, result.reason
    parts = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.self.context", "attention.self.probs"]
    parts += ["attention.output.LayerNorm", "output.LayerNorm", "intermediate.intermediate_act_fn"]
    observed = {v.activation for v in result.verdicts if v.outcome == "pass"}
    assert {f"encoder.layer.{i}.{part}" for i in range(12) for part in parts} <= observed


@pytest.mark.landing({"of": making_bert, "write": exports.frozen}, {"of": inner_workings, "write": exports.exported})
@pytest.mark.parametrize("write", [exports.scripted, exports.frozen, exports.exported], ids=lambda write: write.__name__)
@pytest.mark.parametrize("of", [making_bert, inner_workings, demystified], ids=lambda i: i.name)
def test_the_layers_of_every_kind_of_export_of_the_seed_implementations_are_observed(of: Any, write: Any) -> None:
    if of is demystified and write is not exports.exported:
        pytest.skip("its other exports are among the registered ones")
    more = {"interior": True} if write is exports.exported else {}
    export = Export(f"{of.name}-{write.__name__}", of, write, ".pt2" if more else ".pt", **more)
    result = check(export, "sinusoidal" if of is demystified else "tiny")
    assert result.conforms, result.reason
    assert result.coverage[0] >= 25


class _Wrong(HuggingFace):
    """A model with GELU's tanh form in layer 1 and an epsilon of 1e-5 in layer 0."""

    def build(self, checkpoint: Checkpoint) -> Any:
        model = super().build(checkpoint)
        model["bert"].encoder.layer[1].intermediate.intermediate_act_fn = nn.GELU("tanh")
        model["bert"].encoder.layer[0].output.LayerNorm.eps = 1e-5
        return model


@pytest.mark.landing(suffix=[".pt", ".pt2"])
@pytest.mark.parametrize(
    ("write", "suffix"),
    [(exports.traced, ".pt"), (exports.exported, ".pt2"), pytest.param(exports.onnx, ".onnx", marks=needs_onnx)],
    ids=["traced", "exported", "onnx"],
)
def test_a_mistake_inside_an_export_is_named_at_its_place(write: Any, suffix: str) -> None:
    result = check(Export(f"wrong{suffix}", _Wrong("sdpa"), write, suffix), "tiny")
    assert [v.activation for v in result.origins] == [
        "encoder.layer.0.output.LayerNorm",
        "encoder.layer.1.intermediate.intermediate_act_fn",
    ]
    assert _rendered(result) >= {"epsilon", "gelu-variant"}


def _rendered(result: Result) -> set[str]:
    """Return every reported name, alone or with those it cannot be distinguished from."""
    return {name for f in findings(activation_records(result)) if f.fault for name in (f.fault.name, *f.others)}


# Correct archives with unusual computations.


class _InPlace(inner.BertSelfOutput):
    def forward(self, hidden: Tensor, skip: Tensor) -> Tensor:
        hidden = self.dense(hidden)
        hidden += skip
        return self.LayerNorm(hidden)


class _KeysFirst(inner.BertSelfAttention):
    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, *others: Any) -> tuple[Tensor, Tensor]:
        query, key, value = (self.by_head(f(hidden)) for f in (self.query, self.key, self.value))
        scores = key @ query.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (B, h, keys, queries)
        assert attention_mask is not None
        probs = (scores + attention_mask.transpose(-1, -2)).softmax(-2)
        return (probs.transpose(-1, -2) @ value).permute(0, 2, 1, 3).flatten(2), probs


def _with(part: str, kind: type[nn.Module]) -> nn.Module:
    model = module()
    for layer in model.bert.encoder.layer:
        getattr(layer.attention, part).__class__ = kind
    return model


UNUSUAL: dict[str, Callable[[], nn.Module]] = {
    "as usual": lambda: Called(module()),
    "in place": lambda: Called(_with("output", _InPlace)),
    "keys first": lambda: Called(_with("self", _KeysFirst)),
    "outputs cast and cloned": lambda: Called(module(), lambda *given: logits(*given).to(torch.float32).clone()),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_correct_archive_conforms_with_and_without_its_layers_observed(name: str, tmp_path: Path) -> None:
    archive = Archive(traced(UNUSUAL[name](), tmp_path / "unusual.pt"))
    for seen in (archive, archive.unobserved):
        result = check(seen, GOLDEN, depth="screen")
        assert result.conforms, result.reason


# Export mistakes.


@pytest.mark.parametrize("name", MISTAKES)
def test_each_export_mistake_is_named(name: str, tmp_path: Path) -> None:
    wrong, names = MISTAKES[name]
    result = check(Archive(traced(wrong(), tmp_path / "wrong.pt")), GOLDEN)
    assert result.outcome == "fail"
    assert names <= _rendered(result)


@pytest.mark.parametrize(
    ("baked", "checked", "words"),
    [
        (length_baked, "generated-batches", "its length is fixed: it runs at 16, and at no other"),
        (batch_size_baked, "batching", "its batch size is fixed: it runs at 6, and at no other"),
    ],
)
def test_a_constant_size_in_an_export_is_reported(baked: Any, checked: str, words: str, tmp_path: Path) -> None:
    archive = Archive(traced(baked(), tmp_path / "baked.pt"))
    assert check(archive, GOLDEN, depth="screen").conforms  # The size with which it was exported is correct.
    result = run_check(Request.of(archive, GOLDEN, "cpu", "float32", checked))
    assert result.outcome in ("fail", "crash")
    assert words in result.reason


@needs_onnx
def test_sizes_declared_by_an_onnx_model_are_reported(tmp_path: Path) -> None:
    def fixed(module: nn.Module, example: Any, path: Path) -> None:
        torch.onnx.export(module, example, path, dynamo=True, verbose=False)

    result = check(Export("fixed", hf_sdpa, fixed, ".onnx"), "tiny")
    assert result.outcome == "fail"
    assert "its sizes are fixed: its input input_ids is declared as [3, 7]" in result.reason


# Files.


def test_run_judges_a_file_with_and_without_its_layers_observed(tmp_path: Path) -> None:
    path = _archive(tmp_path / "strange.pt")
    assert main(["run", str(path), "--golden", "tiny", "--golden", "sinusoidal", "-o", str(tmp_path)]) == 0
    checks = read_results(tmp_path / "results.jsonl").checks
    assert [(c.golden, c.check, c.outcome) for c in checks] == [
        ("tiny", "values", "pass"),
        ("tiny", "outputs", "pass"),
        ("sinusoidal", "values", "skip"),
        ("sinusoidal", "outputs", "skip"),
    ]
    assert checks[0].judged > checks[1].judged == 1
    assert "of another checkpoint: it holds no tensor of the shape of bert.embeddings.token_type" in checks[2].reason


def test_inputs_with_uninformative_names_must_be_named(tmp_path: Path) -> None:
    path = _archive(tmp_path / "nameless.pt", of=_Nameless)
    assert "what is its input a, b, c? Name all in order" in check(Archive(path), "tiny").reason
    named = Archive(path, inputs=("input_ids", "token_type_ids", "attention_mask"))
    assert check(named, "tiny", depth="screen").conforms
    assert "2 inputs are named" in check(replace(named, inputs=("input_ids", "attention_mask")), "tiny").reason
    assert "each at most once" in check(replace(named, inputs=("input_ids",) * 3), "tiny").reason


@pytest.mark.parametrize("suffix", [".pt", ".pt2", pytest.param(".onnx", marks=needs_onnx)])
def test_a_damaged_file_is_reported(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(b"no such thing")
    result = check(Archive(path), "tiny")
    assert result.outcome == "fail"
    assert "that can be loaded" in result.reason


class _Runs:
    """An object that writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_pickled_code_in_an_exported_program_is_not_run(tmp_path: Path) -> None:
    good, evil, pickled = tmp_path / "good.pt2", tmp_path / "evil.pt2", io.BytesIO()
    torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)), good)
    torch.save(_Runs(tmp_path / "ran"), pickled)
    with zipfile.ZipFile(good) as read, zipfile.ZipFile(evil, "w") as written:
        for member in read.infolist():
            is_target = member.filename.endswith("sample_inputs/model.pt")
            written.writestr(member.filename, pickled.getvalue() if is_target else read.read(member.filename))
    result = check(Archive(evil), "tiny")
    assert result.outcome == "fail"
    assert "that could run code" in result.reason
    assert not (tmp_path / "ran").exists()


def test_the_fast_path_is_taken_where_expected() -> None:
    checkpoint = load_golden("tiny").checkpoint
    ids, mask = torch.arange(8).reshape(2, 4), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])

    def padding(implementation: Any) -> Tensor:
        model = implementation.module(checkpoint)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model(ids, torch.zeros_like(ids), mask)[0, 2:]

    assert not padding(torch_encoder_fast).any()  # Nested tensors have no padding.
    assert padding(torch_encoder).any()


def test_axes_are_not_confused_in_a_square_batch(tmp_path: Path) -> None:
    """torch's own attention is sequence-first inside, and a batch of six rows of six tokens has the same shape both ways."""
    golden = load_golden("tiny")
    square = {k: v[:, 4:10] if v.ndim == 2 else v for k, v in golden.batches["padded"].arrays().items() if "label" not in k}
    square["attention_mask"] = square["attention_mask"] | (square["attention_mask"].sum(1, keepdims=True) == 0)
    model = torch_encoder.module(golden.checkpoint)
    path = traced(Called(model, lambda m, ids, mask, types: m(ids, types, mask)), tmp_path / "first.pt")
    result = check(Archive(path), golden_of("square", golden.checkpoint, {"square": Batch.of(square)}))
    assert result.conforms, result.reason
