"""Diagnosis of closed systems: outputs of Hugging Face's BERT with mistakes made by configuration or patches."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import Tensor
from torch.nn.functional import normalize
from transformers import BertConfig, BertModel

from conformance import Batch, Checkpoint, load_golden
from conformance.cli import main
from conformance.diagnosis import Diagnosis, OutputTable, diagnose
from conformance.diagnosis.outputs import filled, unit
from conformance.diagnosis.tables import PrintedNumber, tables
from conformance.errors import UsageError
from conformance.model.sentence_transformers import truncated_dimensions
from conformance.report.diagnosis_report import document
from conformance.report.document import markdown
from conformance.tests.test_own_checkpoints import _write

Captured = pytest.CaptureFixture[str]
TINY = load_golden("tiny")
CHECKPOINT, BATCH = TINY.checkpoint, TINY.batches["padded"]
INPUTS = {"input_ids": BATCH.input_ids, "token_type_ids": BATCH.types, "attention_mask": BATCH.mask.astype(np.int64)}


def _model(dtype: str = "float32", **config: Any) -> BertModel:
    sizes = {k: v for k, v in CHECKPOINT.architecture.as_dict().items() if k in BertConfig().to_dict()}
    model = BertModel(BertConfig(**{**sizes, **config}, attn_implementation="eager")).eval()
    weights = {k.removeprefix("bert."): v for k, v in CHECKPOINT.state_dict().items() if k.startswith("bert.")}
    model.load_state_dict(weights, strict=False)
    return model.to(getattr(torch, dtype))


def _hidden(model: BertModel, **inputs: Any) -> Tensor:
    given = {name: torch.tensor(array) for name, array in INPUTS.items()}
    with torch.no_grad():
        return model(**{**given, **inputs}).last_hidden_state


def _mean(hidden: Tensor) -> Tensor:
    mask = torch.tensor(BATCH.mask)[:, :, None].float()
    return (hidden.float() * mask).sum(1) / mask.sum(1)


def _text(x: Tensor, digits: int = 4) -> Any:
    return np.vectorize(lambda v: f"{v:.{digits}f}", otypes=[object])(x.double().numpy()).tolist()


def _asked(outputs: Mapping[str, Any], **options: Any) -> Diagnosis:
    return diagnose(CHECKPOINT, BATCH, outputs, **options)


def _named(diagnosis: Diagnosis) -> set[str]:
    """Return the names of the best explanation."""
    return {fault.name for fault in diagnosis.explanations[0].faults}


def _changed(change: Callable[[Any], object]) -> BertModel:
    """Return a model with a change in each layer."""
    model = _model()
    for layer in model.encoder.layer:
        change(layer)
    return model


def _without_residual() -> BertModel:
    """Omit the residual in layer 1."""
    model = _model()
    out = model.encoder.layer[1].output
    out.forward = lambda hidden, _: out.LayerNorm(out.dropout(out.dense(hidden)))
    return model


def _shifted() -> Tensor:
    return _hidden(_model(), position_ids=torch.arange(BATCH.length)[None] + 2)


# The names of the mistakes, the hidden states, and the pooling of the printed embedding; without one, they are printed themselves.
PLANTED: dict[str, tuple[set[str], Callable[[], Tensor], str]] = {
    "epsilon": ({"epsilon"}, lambda: _hidden(_model(layer_norm_eps=1e-3)), ""),
    "types": ({"token-types-ignored"}, lambda: _hidden(_model(), token_type_ids=None), ""),
    "positions": ({"positions-shifted"}, _shifted, ""),
    "bias": ({"bias-missing"}, lambda: _hidden(_changed(lambda layer: layer.attention.self.value.bias.data.zero_())), ""),
    "one layer": ({"residual-missing"}, lambda: _hidden(_without_residual()), "mean"),
    "relu": ({"activation-relu"}, lambda: _hidden(_model(hidden_act="relu")), "mean"),
    "tanh": ({"gelu-variant"}, lambda: _hidden(_model(hidden_act="gelu_new")), "mean-normalised"),
    "two": ({"mask-ignored", "activation-relu"}, lambda: _hidden(_model(hidden_act="relu"), attention_mask=None), ""),
    "two in embeddings": (
        {"epsilon", "token-types-ignored"},
        lambda: _hidden(_model(layer_norm_eps=1e-3), token_type_ids=None),
        "mean",
    ),
}
POOLED = {"mean": _mean, "mean-normalised": lambda hidden: normalize(_mean(hidden))}
WHERE = {
    "bias": "in every layer, attention.self.value",
    "one layer": "in layer 1, output.LayerNorm",
    "tanh": "in every layer, intermediate.intermediate_act_fn",
}


@pytest.mark.landing(case=["epsilon", "one layer", "tanh", "two"])
@pytest.mark.parametrize("case", PLANTED)
def test_planted_mistakes_are_named_from_four_digits(case: str) -> None:
    names, hidden, pooling = PLANTED[case]
    outputs = {"embedding": _text(POOLED[pooling](hidden()))} if pooling else {"last_hidden_state": _text(hidden())}
    diagnosis = _asked(outputs)
    best = diagnosis.explanations[0]
    assert (diagnosis.conforms, _named(diagnosis), best.pooling) == (False, names, pooling)
    assert best.evidence > 0.0
    assert case not in WHERE or best.faults[0].where == WHERE[case]
    if case == "epsilon":
        estimate = best.faults[0].estimate
        assert estimate is not None
        assert abs(estimate.value - 1e-3) < 5 * estimate.deviation < 1e-4


def test_a_filter_detects_what_rms_and_largest_error_do_not() -> None:
    diagnosis = _asked({"last_hidden_state": _text(_hidden(_model(layer_norm_eps=2e-7)))})
    assert diagnosis.rms < diagnosis.rms_limit
    assert diagnosis.max < diagnosis.max_limit
    assert not diagnosis.conforms
    assert "epsilon" in diagnosis.detected_faults
    assert _named(diagnosis) == {"epsilon"}


POOLERS: dict[str, Callable[[Tensor], Tensor]] = {
    **POOLED,
    "cls": lambda hidden: hidden[:, 0],
    "mean-with-padding": lambda hidden: hidden.mean(1),
    "max": lambda hidden: hidden.masked_fill(torch.tensor(~BATCH.mask)[:, :, None], -1e9).amax(1),
    "pooler": lambda hidden: torch.tanh(_model().pooler.dense(hidden[:, 0])),
}


@pytest.mark.parametrize("name", POOLERS)
def test_correct_outputs_conform_under_their_pooling(name: str) -> None:
    diagnosis = _asked({"embedding": _text(POOLERS[name](_hidden(_model())).detach())})
    assert (diagnosis.conforms, diagnosis.poolings) == (True, (name,))
    assert sum(z >= 12.0 for z in diagnosis.expected_z.values()) > 60
    assert "mistakes would have been detected" in markdown(document(diagnosis))


@pytest.mark.parametrize(("dtype", "exact"), [("float32", True), ("bfloat16", True), ("bfloat16", False), ("float16", False)])
def test_a_correct_system_raises_no_alarm_in_its_format(dtype: str, exact: bool) -> None:
    hidden = _hidden(_model(dtype)).float()
    for name, values in (("last_hidden_state", hidden), ("embedding", _mean(hidden))):
        assert _asked({name: values.numpy() if exact else _text(values)}, dtype=dtype).conforms, name


def test_a_format_other_than_the_promised_one_is_reported() -> None:
    diagnosis = _asked({"last_hidden_state": _text(_hidden(_model("bfloat16")))})
    best = diagnosis.explanations[0]
    assert (diagnosis.conforms, best.faults, best.dtype) == (False, (), "bfloat16")


def test_a_part_of_a_table_is_enough() -> None:
    hidden = _hidden(_model(), token_type_ids=None)
    part = OutputTable(_text(hidden[:, [0, 3]][:, :, 5:20]), {"positions": [0, 3], "features": list(range(5, 20))})
    diagnosis = _asked({"last_hidden_state": part})
    assert sum(count for _, count in diagnosis.outputs) == int(BATCH.mask[:, [0, 3]].sum()) * 15
    assert _named(diagnosis) == {"token-types-ignored"}


def test_an_unexplained_difference_is_reported_as_such() -> None:
    hidden = _hidden(_model())
    noise = 0.05 * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))
    diagnosis = _asked({"last_hidden_state": _text(hidden + noise)})
    assert not diagnosis.conforms
    assert diagnosis.explanations == ()
    rendered = markdown(document(diagnosis)).replace("\\", "")
    assert "no set of up to three mistakes of the catalogue explains it" in rendered
    assert "usual cause" not in rendered


# The command.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("checkpoint"))


def _call(folder: Path, file: Path, *more: str) -> int:
    return main(["diagnose", "--checkpoint", str(folder), str(file), *more])


def test_files_with_and_without_inputs_are_read(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    hidden = _hidden(_model())
    lists = {k: v.tolist() for k, v in INPUTS.items()}
    part = {"values": hidden[:, :, :7].tolist(), "features": [*range(7)]}
    (tmp_path / "part.json").write_text(json.dumps({**lists, "encoder.layer.1.output.LayerNorm": part}))
    (tmp_path / "batch.json").write_text(json.dumps(lists))
    np.savez(tmp_path / "inputs.npz", **INPUTS, last_hidden_state=hidden.numpy())
    save_file({**INPUTS, "embedding": _mean(hidden).numpy()}, tmp_path / "inputs.safetensors")
    (tmp_path / "printed.txt").write_text(repr(hidden))
    options = {"inputs.safetensors": ["--pooling", "mean"]}
    options["printed.txt"] = ["--batch", str(tmp_path / "batch.json"), "--name", "last_hidden_state"]
    for file in ("part.json", "inputs.npz", "inputs.safetensors", "printed.txt"):
        assert _call(folder, tmp_path / file, *options.get(file, [])) == 0, file
        assert "conforms, as far as these outputs show" in capsys.readouterr().out


def test_the_command_prints_the_finding(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "out.json"
    hidden = _hidden(_model(layer_norm_eps=1e-3))
    file.write_text(json.dumps({**{k: v.tolist() for k, v in INPUTS.items()}, "embedding": _text(_mean(hidden))}))
    assert _call(folder, file, "--pooling", "mean") == 1
    rendered = " ".join(capsys.readouterr().out.split())
    assert "does not conform" in rendered
    assert "epsilon is 0.001 ±" in rendered
    assert "in every layer, attention.output.LayerNorm and output.LayerNorm; in embeddings.LayerNorm" in rendered
    assert "pooling mean" in rendered
    assert _call(folder, file, "--format", "json") == 1
    assert json.loads(capsys.readouterr().out)["explanations"][0]["faults"][0]["name"] == "epsilon"


REFUSED = {
    "no.json": ("", "cannot be read"),
    "number.json": ("3", "holds '3', expected an object or a list"),
    "empty.json": ('{"input_ids": [[1, 2]]}', "holds no outputs, only input_ids"),
    "unknown.json": ('{"input_ids": [[1, 2]], "last_hiden_state": [[0.1]]}', "did you mean last_hidden_state?"),
    "short.json": ('{"input_ids": [[1, 2]], "embedding": [[0.1, 0.2]]}', "embedding[0] has 2 entries, expected 32"),
    "deep.json": ('{"input_ids": [[1]], "embedding": [[[0.1], "..."]]}', "it has more axes than the output"),
    "word.json": ('{"input_ids": [[1]], "embedding": [["x", "..."]]}', "embedding[0, 0] is 'x': no number"),
    "nan.json": ('{"input_ids": [[1]], "embedding": [[NaN, "..."]]}', "it is not finite"),
    "nothing.json": ('{"input_ids": [[1]], "embedding": [["..."]]}', "no number of the outputs is known"),
    "ids.json": ('{"input_ids": [[1, 960]], "embedding": [["..."]]}', "input_ids[0, 1] is 960"),
    "inputs.json": ('{"embedding": [[0.1, "..."]]}', "the inputs are missing: "),
    "logits.json": ('{"input_ids": [[1]], "logits": [[0.1, 0.2, 0.3]]}', "say which"),
    "parts.json": ('{"input_ids": [[1]], "embedding": {"values": [[0.1]], "features": [32]}}', "from 0 to 31"),
    "axis.json": ('{"input_ids": [[1]], "embedding": {"values": [[0.1]], "keys": [3]}}', "embedding has no keys"),
    "open.txt": ("tensor([[0.1, 0.2", "opens at line 1, column 8 is not closed"),
    "word.txt": ("tensor([[0.1,\n 0.2, oops]])", "line 2, column 7: 'oops' is no number"),
    "prose.txt": ("it was right\nyesterday", "line 1: 'it' is no number"),
    "blank.txt": ("", "holds no table"),
}
OPTIONS = {
    ("--text", "twice"): "the inputs are given 2 times: --text and input_ids in ",
    ("--pooling", "median"): "no pooling 'median'",
    ("--dtype", "float8"): "no floating-point format",
    ("--pooling", "cls", "--name", "logit"): "did you mean logits?",
}


def test_a_bad_file_or_option_is_refused_with_the_place_and_the_reason(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    batch, good = tmp_path / "batch", tmp_path / "good.json"
    batch.write_text('{"input_ids": [[1, 2]]}')
    good.write_text('{"input_ids": [[1, 2]], "embedding": [[0.1, "..."]]}')
    assert _call(folder, tmp_path / "missing.json") == 2
    for name, (content, said) in REFUSED.items():
        (tmp_path / name).write_text(content)
        assert _call(folder, tmp_path / name, *(["--batch", str(batch)] if name.endswith(".txt") else [])) == 2, name
        assert said in capsys.readouterr().err, name
    for options, said in OPTIONS.items():
        assert _call(folder, good, *options) == 2, options
        assert said in capsys.readouterr().err, options


# The parts.


def test_printed_numbers_have_units_and_ellipses_stand_for_omitted_ones() -> None:
    assert [unit(t) for t in ("0.1234", "1.", "-3", "1.25e-03", ".5")] == pytest.approx([1e-4, 1.0, 1.0, 1e-5, 0.1])
    with pytest.raises(ValueError, match="x"):
        unit("x")
    numbers = filled([["1.0", "...", "2.00"], "...", [None, "...", "3"]], (4, 5), "x")
    assert np.argwhere(~np.isnan(numbers.values)).tolist() == [[0, 0], [0, 4], [3, 4]]
    assert numbers.units[0].tolist() == [0.1, 0.0, 0.0, 0.0, 0.01]
    with pytest.raises(UsageError, match="2 ellipses"):
        filled(["...", "1", "..."], (5,), "x")
    assert [(name, table.values) for name, table in tables("a = [1, ...] b: array([[2.]])", "f")] == [
        ("a", [PrintedNumber("1"), "..."]),
        ("b", [[PrintedNumber("2.")]]),
    ]


SENTENCES = Checkpoint(CHECKPOINT.architecture.with_(pooling="mean", normalize=True), CHECKPOINT.weights)


def _cut(embeddings: Tensor, rest: list[Any]) -> list[list[Any]]:
    return [[*map(float, row[:12]), *rest] for row in embeddings]


def test_shortened_embeddings_conform_if_they_are_normalised_again_and_are_named_if_not() -> None:
    whole = normalize(_mean(_hidden(_model())))
    again = normalize(whole[:, :12])
    assert diagnose(SENTENCES, BATCH, {"embedding": _cut(again, [])}, dimensions=12).conforms
    diagnosis = diagnose(SENTENCES, BATCH, {"embedding": _cut(whole, [])}, dimensions=12)
    assert not diagnosis.conforms
    assert diagnosis.explanations
    assert "cut to 12 features, not normalised again" in markdown(document(diagnosis))


def test_embeddings_are_shortened_only_where_it_is_declared(tmp_path: Path) -> None:
    whole = normalize(_mean(_hidden(_model())))
    assert diagnose(SENTENCES, BATCH, {"embedding": _cut(whole, ["..."])}).conforms
    with pytest.raises(UsageError, match=r"if the system shortens embeddings, say --dimensions 12$"):
        diagnose(SENTENCES, BATCH, {"embedding": _cut(whole, [])})
    with pytest.raises(UsageError, match=r"embeddings of 64 dimensions are declared, expected 1 to 32"):
        diagnose(SENTENCES, BATCH, {"embedding": _cut(whole, [])}, dimensions=64)
    assert truncated_dimensions(tmp_path) is None
    (tmp_path / "config_sentence_transformers.json").write_text('{"truncate_dim": 128}')
    assert truncated_dimensions(tmp_path) == 128


# `diagnose` of outputs whose rows are those of other texts.

ROTATED = np.roll(np.arange(BATCH.size), 1).tolist()


def _sentences(diagnosis: Diagnosis) -> list[str]:
    return [fault.sentence for e in diagnosis.explanations for fault in e.faults]


def _said(order: dict[int, int]) -> str:
    (first, text), *others = order.items()
    clauses = [f"row {first} of the outputs is that of text {text}", *(f"row {row} that of text {t}" for row, t in others)]
    return f"the rows are those of other texts: {', '.join(clauses)}"


@pytest.mark.parametrize(("kind", "order"), [("exact", ROTATED), ("embeddings", [0, 1, 3, 2, 4, 5]), ("both", ROTATED)])
def test_the_text_of_each_row_is_named_and_no_other_explanation(kind: str, order: list[int]) -> None:
    hidden = _hidden(_model())
    outputs: dict[str, Any] = {
        "exact": {"last_hidden_state": hidden[order].numpy()},
        "embeddings": {"embedding": _text(_mean(hidden)[order])},
        "both": {"embedding": _text(_mean(hidden)[order]), "last_hidden_state": _text(hidden[order])},
    }
    diagnosis = diagnose(CHECKPOINT, BATCH, outputs[kind])
    assert not diagnosis.conforms
    assert _sentences(diagnosis) == [_said({row: text for row, text in enumerate(order) if row != text})]
    (best,) = diagnosis.explanations
    assert (best.tied, best.faults[0].where) == (True, "in the order of the rows")
    assert best.evidence > 0.0
    assert best.rms < diagnosis.rms_limit < diagnosis.rms


def test_the_rows_of_equal_texts_keep_their_places() -> None:
    twice = Batch.of({name: array[[0, 0, 1, 2]] for name, array in BATCH.arrays().items()})
    mean = _mean(_hidden(_model()))
    assert _sentences(diagnose(CHECKPOINT, twice, {"embedding": _text(mean[[0, 0, 2, 1]])})) == [_said({2: 3, 3: 2})]
    assert diagnose(CHECKPOINT, twice, {"embedding": _text(mean[[0, 0, 1, 2]])}).conforms


def test_rows_that_were_not_printed_are_not_named() -> None:
    printed = OutputTable(_text(_mean(_hidden(_model()))[[3, 1]]), {"rows": [0, 2]})
    assert _sentences(diagnose(CHECKPOINT, BATCH, {"embedding": printed})) == [_said({0: 3, 2: 1})]


def test_a_fault_besides_another_order_is_not_reported_as_an_order() -> None:
    wrong = _mean(_hidden(_model(hidden_act="relu")))[[1, 0, 2, 3, 4, 5]]
    diagnosis = diagnose(CHECKPOINT, BATCH, {"embedding": _text(wrong)})
    assert not diagnosis.conforms
    assert not any("rows" in sentence for sentence in _sentences(diagnosis))
