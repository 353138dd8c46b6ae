"""Directories of sentence-transformers, whose `modules.json` lists a BERT, a pooling, dense layers and a normalization."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance.errors import CheckpointError, UnsupportedArchitectureError
from conformance.model.checkpoint import Stored, stored_parameters
from conformance.model.files import read_json, reading

MODULES = "modules.json"
_EMBEDDING = "sentence_embedding"  # default input and output of a dense layer

# By name of the pooling: the name of its setting in 1_Pooling/config.json, and the value of `pooling_mode`, which replaces those
# settings from version 6 on.
_POOLINGS = {
    "cls": ("pooling_mode_cls_token", "cls"),
    "mean": ("pooling_mode_mean_tokens", "mean"),
    "max": ("pooling_mode_max_tokens", "max"),
    "mean-sqrt-length": ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    "weighted-mean": ("pooling_mode_weightedmean_tokens", "weightedmean"),
    "last": ("pooling_mode_lasttoken", "lasttoken"),
}
_NAMES = {setting: pooling for pooling, settings in _POOLINGS.items() for setting in settings}
_ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.linear.Identity": "",
}  # by the value of `activation_function` in 2_Dense/config.json


def transformer_folder(folder: Path) -> Path:
    """Return the folder of the BERT itself: the one that `modules.json` names, such as `0_Transformer`, or else this folder."""
    return next((path for kind, path in _modules(folder) if kind == "Transformer"), folder)


def longest_text(folder: Path) -> int | None:
    """Return the number of tokens, including [CLS] and [SEP], to which sentence-transformers truncates a text; None if not stated.

    Raises:
        CheckpointError: the file cannot be read.
    """
    file = transformer_folder(folder) / "sentence_bert_config.json"
    return _integer(file, "the configuration of a tokenizer", "max_seq_length") if _modules(folder) else None


def truncated_dimensions(folder: Path) -> int | None:
    """Return the number of features that sentence-transformers shortens embeddings to, `truncate_dim`; None if it is not stated.

    Raises:
        CheckpointError: the file cannot be read.
    """
    return _integer(folder / "config_sentence_transformers.json", "the configuration of sentence-transformers", "truncate_dim")


def _integer(file: Path, what: str, name: str) -> int | None:
    """Return an integer of a configuration; None if there is no such file, or the file does not state it."""
    if not file.is_file():
        return None
    with reading(file, what, CheckpointError):
        found = read_json(file, dict[str, Any]).get(name)
        return None if found is None else int(found)


def sentence_embedding(folder: Path) -> dict[str, Any]:
    """Return the architecture's `pooling`, `dense` and `normalize`; empty if this is no directory of sentence-transformers.

    Raises:
        CheckpointError: a file is missing or cannot be read.
        UnsupportedArchitectureError: the modules are not a BERT, a pooling, dense layers and a normalization, in that order; or
            there are no equations for the pooling or for the activation of a dense layer.
    """
    modules = _modules(folder)
    if not modules:
        return {}
    kinds = [kind for kind, _ in modules]
    if not re.fullmatch("Transformer (Pooling (Dense )*(Normalize )?)?", "".join(f"{kind} " for kind in kinds)):
        raise UnsupportedArchitectureError(
            f"{folder / MODULES} lists {', '.join(kinds)}, and there are equations for Transformer, Pooling, any number of Dense, "
            "and Normalize, in that order; remove what stands behind these to judge what is left"
        )
    if "Pooling" not in kinds:
        return {}
    return {
        "pooling": _pooling(dict(modules)["Pooling"] / "config.json"),
        "dense": [_dense(path / "config.json") for path in _dense_folders(folder)],
        "normalize": kinds[-1] == "Normalize" and _is_normalization(modules[-1][1] / "config.json"),
    }


def dense_parameters(folder: Path) -> dict[str, Stored]:
    """Return the parameters of the dense layers by canonical name, such as `sentence_embedding.dense.0.linear.weight`.

    Raises:
        CheckpointError: a file is missing or cannot be read.
    """
    return {
        f"sentence_embedding.dense.{number}.{name}": tensor
        for number, path in enumerate(_dense_folders(folder))
        for name, tensor in stored_parameters(path).items()
    }


def _dense_folders(folder: Path) -> list[Path]:
    return [path for kind, path in _modules(folder) if kind == "Dense"]


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Return the class name and the folder of each module, in order."""
    file = folder / MODULES
    if not file.is_file():
        return []
    with reading(file, "a list of modules", CheckpointError):
        found = read_json(file, list[dict[str, Any]])
        return [(str(module["type"]).rpartition(".")[2], folder / _inside(str(module["path"]))) for module in found]


def _inside(path: str) -> str:
    """Return a path unchanged; raises `ValueError` if it leads out of the folder."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ValueError(f"the path {path!r:.100} leads out of the folder")
    return path


def _pooling(file: Path) -> str:
    with reading(file, "the configuration of a pooling", CheckpointError):
        config = read_json(file, dict[str, Any])
        modes = _modes(config)
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise UnsupportedArchitectureError(
            f"{file} pools by {', '.join(modes) or 'nothing'}, and there are equations for one of {', '.join(_POOLINGS)}"
        )
    return modes[0]


def _dense(file: Path) -> dict[str, Any]:
    """Return the settings of one `Dense` module, for the architecture's `dense`."""
    with reading(file, "the configuration of a dense layer", CheckpointError):
        config = read_json(file, dict[str, Any])
        out_features, bias, function = config["out_features"], config.get("bias", True), config["activation_function"]
    if function not in _ACTIVATIONS:
        raise UnsupportedArchitectureError(
            f"{file} has the activation_function {function!r:.80}, and there are equations for {', '.join(_ACTIVATIONS)}"
        )
    if config.get("use_residual"):
        raise UnsupportedArchitectureError(f"{file} has use_residual, and there are equations for dense layers without residual")
    _require_embedding(file, config)
    return {"out_features": out_features, "bias": bias, "activation": _ACTIVATIONS[function]}


def _is_normalization(file: Path) -> bool:
    """Return True after checking the configuration of a `Normalize` module, which exists from version 6 on."""
    if file.is_file():
        with reading(file, "the configuration of a normalisation", CheckpointError):
            config = read_json(file, dict[str, Any])
        _require_embedding(file, config)
    return True


def _require_embedding(file: Path, config: Mapping[str, Any]) -> None:
    """Raise `UnsupportedArchitectureError` if a module reads or writes anything other than the sentence embedding."""
    named = {config.get(name) or _EMBEDDING for name in ("module_input_name", "module_output_name")}
    if named != {_EMBEDDING}:
        raise UnsupportedArchitectureError(
            f"{file} reads or writes {', '.join(sorted(map(str, named)))}, and there are equations for {_EMBEDDING} alone"
        )


def _modes(config: Mapping[str, Any]) -> list[str]:
    """Return the poolings that are switched on, under this package's names where they exist."""
    if "pooling_mode" in config:
        modes = config["pooling_mode"]
        return [_NAMES.get(mode, str(mode)) for mode in ([modes] if isinstance(modes, str) else modes)]
    return [_NAMES.get(name, name) for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
