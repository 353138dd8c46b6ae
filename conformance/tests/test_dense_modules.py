"""sentence-transformers `Dense` modules: read from a directory, judged in every format, and named where they are left out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from conformance import Result, check, load_directory
from conformance.errors import CheckpointError, UnsupportedArchitectureError
from conformance.implementations.hugging_face import BertWithHeads, hf_eager
from conformance.model.architecture import Dense
from conformance.tests.dense_modules import ARCHITECTURE, PLAIN, TANH, directory, network
from conformance.tests.planted_mistakes import Planted

DTYPES = ("float64", "float32", "bfloat16", "float16")


def layers(model: BertWithHeads) -> Any:
    """Return the dense layers of a model."""
    return model.get_submodule("sentence_embedding.dense")


def without_function(model: BertWithHeads) -> None:
    layers(model)[0].activation_function = nn.Identity()


def without_layers(model: BertWithHeads) -> None:
    del model["sentence_embedding"]


def without_product(model: BertWithHeads) -> None:
    layers(model)[0].linear = nn.Identity()


def passed(result: Result) -> set[str]:
    return {verdict.activation for verdict in result.verdicts if verdict.outcome == "pass"}


MIXED = (Dense(48, activation="gelu"), Dense(20, bias=False, activation="relu"), Dense(9, activation="tanh"), Dense(7, bias=False))


@pytest.mark.parametrize("normalize", [True, False])
def test_dense_modules_are_read_in_order_with_everything_in_their_files(normalize: bool, tmp_path: Path) -> None:
    given = network(*MIXED, normalize=normalize).checkpoint
    found = load_directory(directory(tmp_path, given))
    assert (found.architecture.dense, found.architecture.normalize) == (MIXED, normalize)
    assert found.weights.keys() == given.weights.keys()
    for name, w in given.weights.items():
        np.testing.assert_array_equal(found.weights[name], w)


@pytest.mark.landing({"dtype": "float32"}, dense=MIXED)
@pytest.mark.parametrize(
    ("dense", "normalize", "dtype"),
    [*((MIXED, True, dtype) for dtype in DTYPES), ((TANH,), False, "float32"), ((PLAIN,), False, "bfloat16")],
)
def test_dense_layers_conform_in_every_format_and_each_of_their_steps_is_judged(
    dense: tuple[Dense, ...], normalize: bool, dtype: str
) -> None:
    golden = network(*dense, normalize=normalize)
    result = check(hf_eager, golden, dtype=dtype, depth="screen")
    assert result.conforms, result.reason
    steps = sum(1 + bool(d.activation) for d in dense)
    assert sum(name.startswith("sentence_embedding") for name in passed(result)) == 1 + steps + normalize


def test_the_gradients_of_dense_layers_and_of_their_parameters_conform() -> None:
    result = check(hf_eager, network(*MIXED, normalize=True), check="gradients")
    assert result.conforms, result.reason
    layer = "sentence_embedding.dense.{}.linear.{}.grad"
    assert {layer.format(0, "weight"), layer.format(0, "bias"), layer.format(1, "weight")} <= passed(result)


MISSING = ("dense-missing", "the dense layer after the pooling returns its input unchanged")


@pytest.mark.parametrize(
    ("change", "dense", "normalize", "dtype", "sentence"),
    [
        (without_function, TANH, True, "bfloat16", ("activation-missing", "there is no activation function")),
        (without_layers, TANH, False, "float32", MISSING),
        (without_product, TANH, True, "bfloat16", MISSING),
        (without_layers, PLAIN, True, "float32", MISSING),
        (without_layers, PLAIN, False, "bfloat16", MISSING),
    ],
)
def test_an_omitted_part_of_a_dense_layer_is_named(
    change: Callable[[BertWithHeads], None], dense: Dense, normalize: bool, dtype: str, sentence: tuple[str, str]
) -> None:
    result = check(Planted(change), network(dense, normalize=normalize), dtype=dtype)
    ((name, words),) = [(finding.name, finding.sentence) for finding in result.findings]
    assert name == sentence[0]
    assert sentence[1] in words


REFUSED: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
    (
        {"activation_function": "torch.nn.modules.activation.SiLU"},
        UnsupportedArchitectureError,
        "activation_function 'torch.nn.modules.activation.SiLU'",
    ),
    ({"module_output_name": "small"}, UnsupportedArchitectureError, "reads or writes sentence_embedding, small"),
    ({"use_residual": True}, UnsupportedArchitectureError, "equations for dense layers without residual"),
    ({"bias": False}, CheckpointError, "unexpected: sentence_embedding.dense.0.linear.bias"),
    ({"out_features": 5}, CheckpointError, "wrong shape: sentence_embedding.dense.0.linear.weight"),
)


def test_dense_modules_without_an_equation_are_refused_by_name(tmp_path: Path) -> None:
    folder = directory(tmp_path, network(TANH).checkpoint)
    file = folder / "2_Dense" / "config.json"
    config = json.loads(file.read_text())
    for change, error, said in REFUSED:
        file.write_text(json.dumps({**config, **change}))
        with pytest.raises(error, match=said):
            load_directory(folder)
    with pytest.raises(UnsupportedArchitectureError, match="there is no pooling"):
        ARCHITECTURE.with_(pooling="", dense=(TANH,))
    with pytest.raises(UnsupportedArchitectureError, match="out_features of a Dense module is 0"):
        Dense(0)
    with pytest.raises(UnsupportedArchitectureError, match="the activation 'silu' of a Dense module"):
        Dense(5, activation="silu")
