"""Networks with sentence-transformers `Dense` modules after their pooling, which none of the stored goldens has."""

import json
from pathlib import Path

from safetensors.numpy import save_file

from conformance import Checkpoint, Golden, golden_of, load_golden
from conformance.goldens.generated_weights import weights
from conformance.model.architecture import Dense

_TINY = load_golden("tiny")
_SEED = 7

ARCHITECTURE = _TINY.checkpoint.architecture.with_(num_hidden_layers=1, heads=(), pooler=False, pooling="mean")
"""Without any dense layer yet."""

WIDTH = ARCHITECTURE.hidden_size
TANH, PLAIN = Dense(WIDTH, activation="tanh"), Dense(WIDTH, bias=False)
"""Layers of the hidden state's own width, so that a network runs without them."""

FUNCTIONS = {"tanh": "activation.Tanh", "relu": "activation.ReLU", "gelu": "activation.GELU", "": "linear.Identity"}
"""sentence-transformers' names of the functions, behind `torch.nn.modules.`."""


def network(*dense: Dense, normalize: bool = False) -> Golden:
    """Return a golden with one layer and these dense modules after mean pooling, on the batches of `tiny`."""
    a = ARCHITECTURE.with_(dense=dense, normalize=normalize)
    return golden_of("dense", Checkpoint(a, weights(_SEED, a)), _TINY.batches)


def directory(folder: Path, given: Checkpoint) -> Path:
    """Write the same network as a sentence-transformers directory."""
    a = given.architecture
    kinds = ["Transformer", "Pooling", *["Dense"] * len(a.dense), *["Normalize"] * a.normalize]
    modules = [{"path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    for module in modules:
        (folder / module["path"]).mkdir()
    own = {name: w for name, w in given.weights.items() if not name.startswith("sentence_embedding")}
    save_file(own, folder / "0_Transformer" / "model.safetensors")
    (folder / "0_Transformer" / "config.json").write_text(json.dumps({**a.as_dict(), "model_type": "bert"}))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{a.pooling}_tokens": True}))
    width = a.hidden_size
    for number, dense in enumerate(a.dense):
        path = f"sentence_embedding.dense.{number}."
        function = f"torch.nn.modules.{FUNCTIONS[dense.activation]}"
        config = {"in_features": width, "out_features": dense.out_features, "bias": dense.bias, "activation_function": function}
        (folder / f"{number + 2}_Dense" / "config.json").write_text(json.dumps(config))
        parameters = {name.removeprefix(path): w for name, w in given.weights.items() if name.startswith(path)}
        save_file(parameters, folder / f"{number + 2}_Dense" / "model.safetensors")
        width = dense.out_features
    return folder
