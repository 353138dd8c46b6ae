"""Diagnosis of closed systems: outputs of Hugging Face's BERT with mistakes made by configuration or patches."""

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import BertConfig, BertModel

from conformance import Batch, Checkpoint, load_golden
from conformance.cli import main
from conformance.diagnosis import POOLINGS, Diagnosis, OutputTable, diagnose, read
from conformance.diagnosis.black_box import EMBEDDING, BlackBox, Output
from conformance.diagnosis.outputs import resolved
from conformance.diagnosis.printed import PrintedNumber, filled, unit
from conformance.diagnosis.tables import tables
from conformance.errors import UsageError
from conformance.model.sentence_transformers import truncated_dimensions
from conformance.oracle import Network
from conformance.report.diagnosis_document import document
from conformance.report.markdown import markdown
from conformance.tests.test_own_checkpoints import _write

TINY = load_golden("tiny")
CHECKPOINT, BATCH = TINY.checkpoint, TINY.batches["padded"]
Tensor = torch.Tensor


def _model(dtype: str = "float32", **config: Any) -> BertModel:
    sizes = {k: v for k, v in CHECKPOINT.architecture.as_dict().items() if k in BertConfig().to_dict()}
    model = BertModel(BertConfig(**{**sizes, **config}, attn_implementation="eager")).eval()
    weights = {k.removeprefix("bert."): v for k, v in CHECKPOINT.state_dict().items() if k.startswith("bert.")}
    model.load_state_dict(weights, strict=False)
    return model.to(getattr(torch, dtype))


def _hidden(model: BertModel, **inputs: Any) -> Tensor:
    given = {
        "input_ids": torch.tensor(BATCH.input_ids),
        "attention_mask": torch.tensor(BATCH.mask.astype(int)),
        "token_type_ids": torch.tensor(BATCH.types),
        **inputs,
    }
    with torch.no_grad():
        return model(**given).last_hidden_state


def _mean(hidden: Tensor) -> Tensor:
    mask = torch.tensor(BATCH.mask)[:, :, None].float()
    return (hidden.float() * mask).sum(1) / mask.sum(1)


def _unit_mean(hidden: Tensor) -> Tensor:
    return torch.nn.functional.normalize(_mean(hidden))


def _text(x: Tensor, digits: int = 4) -> Any:
    return np.vectorize(lambda v: f"{v:.{digits}f}", otypes=[object])(x.double().numpy()).tolist()


def _asked(outputs: Mapping[str, Any], **kwargs: Any) -> Diagnosis:
    return diagnose(CHECKPOINT, BATCH, outputs, **kwargs)


def _named(found: Diagnosis) -> list[set[str]]:
    return [{f.name for f in e.faults} for e in found.explanations]


def _thin_layer() -> BertModel:
    """Omit the residual in layer 1."""
    model = _model()
    out = model.encoder.layer[1].output
    out.forward = lambda hidden, _: out.LayerNorm(out.dropout(out.dense(hidden)))
    return model


def _swapped() -> BertModel:
    model = _model()
    for layer in model.encoder.layer:
        own = layer.attention.self
        own.query, own.key = own.key, own.query
    return model


def _unbiased() -> BertModel:
    model = _model()
    for layer in model.encoder.layer:
        torch.nn.init.zeros_(layer.attention.self.value.bias)
    return model


PLANTED: dict[str, tuple[str, Callable[[], Tensor]]] = {
    "epsilon": ("epsilon", lambda: _hidden(_model(layer_norm_eps=1e-3))),
    "relu": ("activation-relu", lambda: _hidden(_model(hidden_act="relu"))),
    "mask": ("mask-ignored", lambda: _hidden(_model(), attention_mask=None)),
    "types": ("token-types-ignored", lambda: _hidden(_model(), token_type_ids=None)),
    "positions": ("positions-shifted", lambda: _hidden(_model(), position_ids=torch.arange(BATCH.length)[None] + 2)),
    "bias": ("bias-missing", lambda: _hidden(_unbiased())),
    "one layer": ("residual-missing", lambda: _hidden(_thin_layer())),
}


@pytest.mark.landing(case=[*PLANTED][::2])
@pytest.mark.parametrize(
    ("case", "pooled"), [*((case, False) for case in PLANTED), ("mask", True), ("relu", True), ("one layer", True)]
)
def test_a_planted_fault_is_the_first_named(case: str, pooled: bool) -> None:
    name, make = PLANTED[case]
    hidden = make()
    found = _asked({"embedding": _text(_mean(hidden))} if pooled else {"last_hidden_state": _text(hidden)})
    assert not found.conforms
    best = found.explanations[0]
    assert best.explains
    assert _named(found)[0] == {name}
    assert best.pooling == ("mean" if pooled else "")
    assert best.evidence > 0.0
    if case == "epsilon":
        estimate = best.faults[0].estimate
        assert estimate is not None
        assert abs(estimate.value - 1e-3) < 5 * estimate.deviation < 1e-4
    if case == "bias":
        assert best.faults[0].where == "in every layer, attention.self.value"
    if case == "one layer":
        assert best.faults[0].where == "in layer 1, output.LayerNorm"


def test_the_tanh_form_is_found_from_an_embedding_of_four_digits() -> None:
    found = _asked({"embedding": _text(_unit_mean(_hidden(_model(hidden_act="gelu_new"))))})
    assert _named(found)[0] == {"gelu-variant"}
    assert "every layer" in found.explanations[0].faults[0].where


def test_a_filter_finds_what_rms_and_largest_error_do_not() -> None:
    found = _asked({"last_hidden_state": _text(_hidden(_model(layer_norm_eps=2e-7)))})
    assert found.rms < found.rms_limit
    assert found.max < found.max_limit
    assert not found.conforms
    assert "epsilon" in found.detected_faults
    assert _named(found)[0] == {"epsilon"}


def test_indistinguishable_faults_are_named_together() -> None:
    """With query and key exchanged, the scores q kᵀ become (q kᵀ)ᵀ, so both faults give the same values."""
    found = _asked({"last_hidden_state": _text(_hidden(_swapped()))})
    assert {tuple(f.name for f in e.faults) for e in found.tied} == {("query-key-swapped",), ("scores-transposed",)}


def test_two_simultaneous_faults_are_named() -> None:
    hidden = _hidden(_model(hidden_act="relu"), attention_mask=None)
    found = _asked({"last_hidden_state": _text(hidden)})
    assert found.explanations[0].explains
    assert _named(found)[0] == {"mask-ignored", "activation-relu"}
    again = _asked({"embedding": _text(_mean(_hidden(_model(layer_norm_eps=1e-3), token_type_ids=None)))})
    assert _named(again)[0] == {"epsilon", "token-types-ignored"}


@pytest.mark.parametrize("name", ["cls", "mean", "mean-with-padding", "max", "mean-normalised", "pooler"])
def test_correct_outputs_conform_under_their_pooling(name: str) -> None:
    hidden = _hidden(_model())
    makers: dict[str, Callable[[], Tensor]] = {
        "cls": lambda: hidden[:, 0],
        "mean": lambda: _mean(hidden),
        "mean-with-padding": lambda: hidden.mean(1),
        "max": lambda: hidden.masked_fill(torch.tensor(~BATCH.mask)[:, :, None], -1e9).amax(1),
        "mean-normalised": lambda: _unit_mean(hidden),
        "pooler": lambda: torch.tanh(_model().pooler.dense(hidden[:, 0])),
    }
    found = _asked({"embedding": _text(makers[name]().detach())})
    assert found.conforms
    assert found.poolings == (name,)
    assert len(found.shown) > 60
    assert all(u.expected_z < 12.0 for u in found.unseen)


def test_a_pooling_mistake_is_reported_as_pooling() -> None:
    outputs = {"embedding": _text(_hidden(_model()).mean(1))}
    found = _asked(outputs, pooling="mean")
    assert not found.conforms
    (best,) = found.explanations
    assert (best.faults, best.pooling, best.pooling_differs, best.explains) == ((), "mean-with-padding", True, True)
    assert _asked(outputs, pooling="mean-with-padding").conforms


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("exact", [False, True])
def test_a_correct_system_raises_no_alarm_in_its_own_format(dtype: str, exact: bool) -> None:
    hidden = _hidden(_model(dtype)).float()
    for outputs in ({"last_hidden_state": hidden}, {"embedding": _mean(hidden)}):
        given = {k: v.numpy() if exact else _text(v) for k, v in outputs.items()}
        assert _asked(given, dtype=dtype).conforms


def test_a_format_other_than_the_promised_one_is_reported() -> None:
    found = _asked({"last_hidden_state": _text(_hidden(_model("bfloat16")))})
    assert not found.conforms
    best = found.explanations[0]
    assert (best.faults, best.dtype, best.explains) == ((), "bfloat16", True)


def test_a_tensor_as_printed_by_torch_is_enough(tmp_path: Path) -> None:
    hidden = _hidden(_model(layer_norm_eps=1e-3))
    torch.set_printoptions(threshold=10, sci_mode=False)
    try:
        text = f"BaseModelOutput(last_hidden_state={hidden!r}, hidden_states=None)"
    finally:
        torch.set_printoptions(profile="default")
    assert "..." in text
    file = tmp_path / "printed.txt"
    file.write_text(text)
    given = read(file)
    found = _asked(given.tables)
    assert 0 < found.elements < 250
    assert found.digits == 4.0
    assert _named(found)[0] == {"epsilon"}


def test_a_part_of_a_table_is_enough() -> None:
    hidden = _hidden(_model(), token_type_ids=None)
    part = OutputTable(_text(hidden[:, [0, 3]][:, :, 5:20]), {"positions": [0, 3], "features": list(range(5, 20))})
    found = _asked({"last_hidden_state": part})
    assert found.elements == int(BATCH.mask[:, [0, 3]].sum()) * 15
    assert _named(found)[0] == {"token-types-ignored"}
    rounded = _asked({"embedding": OutputTable(_mean(_hidden(_model())).double().numpy().round(3), digits=3)})
    assert rounded.conforms
    assert rounded.digits == 3.0


def test_texts_of_which_no_number_was_printed_are_not_used() -> None:
    lengths = np.array([5, 9, 7])  # the longest text is not printed
    ids = np.arange(27).reshape(3, 9) + 3
    texts = Batch.of({"input_ids": ids, "attention_mask": (np.arange(9) < lengths[:, None]).astype(int)})
    numbers = np.random.default_rng(0).standard_normal((2, CHECKPOINT.architecture.hidden_size))
    found = diagnose(CHECKPOINT, texts, {"embedding": OutputTable(numbers, {"rows": [0, 2]})}, pooling="mean", time_limit=1.0)
    assert not found.conforms


def test_outputs_of_cross_attention_are_read_or_refused_by_their_axes() -> None:
    golden = load_golden("cross-attention")
    ((_, batch),) = golden.batches.items()
    name = "encoder.layer.0.crossattention.self.probs"
    actual = dict(Network(golden.checkpoint.architecture, golden.checkpoint.weights, batch).walk())[name]
    assert diagnose(golden.checkpoint, batch, {name: actual}).elements
    with pytest.raises(UsageError, match="states"):
        diagnose(golden.checkpoint, batch, {name: actual[..., :2]})


def test_an_unexplained_difference_is_reported_as_such() -> None:
    hidden = _hidden(_model())
    noise = 0.05 * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))
    found = _asked({"last_hidden_state": _text(hidden + noise)})
    assert not found.conforms
    assert found.explanations
    assert not any(e.explains or e.tied for e in found.explanations)
    assert all(e.accounted < 0.5 for e in found.explanations)
    rendered = markdown(document(found)).replace("\\", "")
    assert "These sets of mistakes come closest, but do not explain the outputs" in rendered
    assert rendered.count("not an explanation: ") == sum(e.accounted > 0.0 for e in found.explanations)
    assert "usual cause" not in rendered


# Tests of the command.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("checkpoint"))


def _inputs() -> dict[str, Any]:
    return {"input_ids": BATCH.input_ids, "token_type_ids": BATCH.types, "attention_mask": BATCH.mask.astype(np.int64)}


def _call(folder: Path, file: Path, *more: str) -> int:
    return main(["diagnose", "--checkpoint", str(folder), "--outputs", str(file), *more])


def test_every_kind_of_file_is_read(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden = _hidden(_model())
    lists = {k: v.tolist() for k, v in _inputs().items()}
    rounded = [[round(x, 4) for x in row] for row in _mean(hidden).tolist()]
    (tmp_path / "a.json").write_text(json.dumps({**lists, "sentence_embedding": rounded}))
    (tmp_path / "b.json").write_text(json.dumps({**lists, "last_hidden_state": hidden.tolist()}))
    part = {"values": hidden[:, :, :7].tolist(), "features": [*range(7)], "digits": 6}
    (tmp_path / "c.json").write_text(json.dumps({**lists, "encoder.layer.1.output.LayerNorm": part}))
    np.savez(tmp_path / "d.npz", **_inputs(), last_hidden_state=hidden.numpy())
    save_file({**_inputs(), "embedding": _mean(hidden).numpy()}, tmp_path / "e.safetensors")
    for name in "abc":
        assert _call(folder, tmp_path / f"{name}.json") == 0
    assert _call(folder, tmp_path / "d.npz") == 0
    assert _call(folder, tmp_path / "e.safetensors", "--pooling", "mean") == 0
    assert "conforms, as far as these outputs show" in capsys.readouterr().out
    (tmp_path / "batch.json").write_text(json.dumps(lists))
    (tmp_path / "f.txt").write_text(repr(hidden))
    with np.printoptions(threshold=20, precision=5):
        (tmp_path / "g.txt").write_text(str(_mean(hidden).numpy()))
    np.savetxt(tmp_path / "h.txt", hidden[:, 0].numpy(), "%.4f")
    for name in "fgh":
        assert _call(folder, tmp_path / f"{name}.txt", "--batch", str(tmp_path / "batch.json")) == 0
    assert _call(folder, tmp_path / "f.txt", "--batch", str(tmp_path / "batch.json"), "--output", "last_hidden_state") == 0


def test_the_command_prints_the_finding(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    hidden = _hidden(_model(layer_norm_eps=1e-3))
    file.write_text(json.dumps({**{k: v.tolist() for k, v in _inputs().items()}, "embedding": _text(_mean(hidden))}))
    assert _call(folder, file, "--pooling", "mean") == 1
    rendered = " ".join(capsys.readouterr().out.split())
    assert "does not conform" in rendered
    assert "epsilon is 0.001 ±" in rendered
    assert "in every layer, attention.output.LayerNorm and output.LayerNorm; in embeddings.LayerNorm" in rendered
    assert "pooling mean" in rendered
    assert _call(folder, file, "--format", "json") == 1
    assert json.loads(capsys.readouterr().out)["explanations"][0]["faults"][0]["name"] == "epsilon"


def test_markdown_escapes_what_it_reports() -> None:
    rendered = markdown(document(_asked({"pooler_output": _text(_model().pooler(_hidden(_model())).detach())})))
    assert rendered.startswith("**conforms, as far as these outputs show**\n\nread: 128 numbers of pooler.activation;")
    assert "mistakes would have been detected" in rendered


BAD = {
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


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_the_place_and_the_reason(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, said = BAD[name]
    file = tmp_path / name
    file.write_text(content)
    batch = tmp_path / "batch"
    batch.write_text('{"input_ids": [[1, 2]]}')
    assert _call(folder, file, *(["--batch", str(batch)] if name.endswith(".txt") else [])) == 2
    assert said in capsys.readouterr().err


def test_the_message_for_missing_inputs_shows_a_complete_command_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "it's here"
    home.mkdir()
    checkpoint, file = _write(home), home / "out.json"
    (checkpoint / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "i", "love", "cats", "!", "a", "lamp", "."])
    )
    file.write_text('{"embedding": [[0.1, "..."], [0.2, "..."]]}')
    assert _call(checkpoint, file) == 2
    said = capsys.readouterr().err
    assert f"{file} has outputs only" in said
    shown = next(line for line in said.splitlines() if line.strip().startswith("bert-conformance diagnose"))
    assert main(shlex.split(shown)[1:]) != 2


def test_usage_errors_are_reported(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _call(folder, tmp_path / "missing.json") == 2
    file = tmp_path / "a.json"
    file.write_text('{"input_ids": [[1, 2]], "embedding": [[0.1, "..."]]}')
    for more, said in (
        (["--text", "twice"], "the inputs are given 2 times: --text and input_ids in "),
        (["--pooling", "median"], "no pooling 'median'"),
        (["--dtype", "float8"], "no floating-point format"),
        (["--pooling", "cls", "--output", "logit"], "did you mean logits?"),
    ):
        assert _call(folder, file, *more) == 2
        assert said in capsys.readouterr().err


# Tests of the parts.


def test_the_rounding_unit_of_a_printed_number() -> None:
    assert [unit(t) for t in ("0.1234", "1.", "-3", "1.25e-03", ".5")] == pytest.approx([1e-4, 1.0, 1.0, 1e-5, 0.1])
    with pytest.raises(ValueError, match="x"):
        unit("x")


def test_ellipses_stand_for_omitted_numbers() -> None:
    known = filled([["1.0", "...", "2.00"], "...", [None, "...", "3"]], (4, 5), "x")
    assert np.argwhere(~np.isnan(known.values)).tolist() == [[0, 0], [0, 4], [3, 4]]
    assert known.units[0].tolist() == [0.1, 0.0, 0.0, 0.0, 0.01]
    with pytest.raises(UsageError, match="2 ellipses"):
        filled(["...", "1", "..."], (5,), "x")
    assert tables("a = [1, ...] b: array([[2.]])", "f") == [
        ("a", [PrintedNumber("1"), "..."], None, ""),
        ("b", [[PrintedNumber("2.")]], None, ""),
    ]


@pytest.mark.parametrize("width", [32, 12])
@pytest.mark.parametrize("name", POOLINGS)
def test_a_poolings_jacobian_is_the_derivative_of_its_function(name: str, width: int) -> None:
    pooling = POOLINGS[name]
    table = OutputTable(np.zeros((BATCH.size, width)))
    known = resolved({"embedding": table}, CHECKPOINT.architecture, BATCH, dimensions=width)
    network = BlackBox(CHECKPOINT.architecture, CHECKPOINT.weights, BATCH, known, (pooling,))
    assert isinstance(known[0], Output)
    rng = np.random.default_rng(0)
    shape = (BATCH.size, 32) if pooling.base == "pooler" else (BATCH.size, BATCH.length, 32)
    x, e = rng.standard_normal(shape), 1e-6 * rng.standard_normal(shape)

    def steps(x: np.ndarray) -> list[Any]:
        found = [network.step(f"{EMBEDDING}.{pooling.base}", x)]
        for following in network.names_after(pooling):
            found.append(network.step(following, found[-1].value))
        return found

    w = rng.standard_normal((BATCH.size, width if network.names_after(pooling) else 32))
    back, moved = w, steps(x + e)[-1].value - steps(x)[-1].value
    for step in reversed(steps(x)):
        back = step.jacobians()[0].adjoint(back)
    assert float((w * moved).sum()) == pytest.approx(float((back * e).sum()), rel=1e-3)
    last = steps(x)[-1]
    unit_errors = np.zeros_like(last.parents[0])
    unit_errors[0, ..., 3] = 1.0
    expected = sum(last.jacobians()[0].adjoint(row.reshape(w.shape))[0, ..., 3] ** 2 for row in [np.eye(1, w.size, 3)[0]])
    assert last.jacobians()[0].variance(unit_errors)[0, 3] == pytest.approx(float(np.sum(expected)))


def _of_sentences() -> Checkpoint:
    return Checkpoint(CHECKPOINT.architecture.with_(pooling="mean", normalize=True), CHECKPOINT.weights)


def _cut(embeddings: Tensor, *, nulls: bool = False) -> list[list[float | None]]:
    return [[*map(float, row[:12]), *([None] * (len(row) - 12) if nulls else [])] for row in embeddings]


@pytest.mark.parametrize("nulls", [False, True])
def test_shortened_embeddings_conform_if_they_are_normalised_again_and_are_named_if_not(nulls: bool) -> None:
    whole = _unit_mean(_hidden(_model()))
    asked = {"dimensions": None if nulls else 12}
    again = torch.nn.functional.normalize(whole[:, :12])
    assert diagnose(
        _of_sentences(), BATCH, {"embedding": _cut(torch.nn.functional.pad(again, (0, 20)), nulls=nulls)}, **asked
    ).conforms
    found = diagnose(_of_sentences(), BATCH, {"embedding": _cut(whole, nulls=nulls)}, **asked)
    assert not found.conforms
    assert found.explanations[0].explains
    rendered = markdown(document(found))
    assert "cut to 12 features, not normalised again" in rendered


def test_numbers_that_are_left_out_do_not_shorten_embeddings() -> None:
    parts = [[*map(float, row[:3]), "..."] for row in _unit_mean(_hidden(_model()))]
    assert diagnose(_of_sentences(), BATCH, {"embedding": parts}).conforms


def test_fewer_numbers_than_features_are_refused_with_the_option_that_declares_them() -> None:
    with pytest.raises(UsageError, match=r"if the system shortens embeddings, say --dimensions 12$"):
        diagnose(_of_sentences(), BATCH, {"embedding": _cut(_unit_mean(_hidden(_model())))})
    with pytest.raises(UsageError, match=r"embeddings of 64 dimensions are declared, expected 1 to 32"):
        diagnose(_of_sentences(), BATCH, {"embedding": _cut(_unit_mean(_hidden(_model())))}, dimensions=64)


def test_the_directory_declares_the_dimensions_of_embeddings(tmp_path: Path) -> None:
    assert truncated_dimensions(tmp_path) is None
    (tmp_path / "config_sentence_transformers.json").write_text('{"truncate_dim": 128}')
    assert truncated_dimensions(tmp_path) == 128
