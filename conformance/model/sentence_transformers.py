"""Directories of sentence-transformers: `modules.json` lists a BERT, a pooling and, where there is one, a normalisation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance.errors import CheckpointError, UnsupportedArchitectureError
from conformance.files import read_json, reading

MODULES = "modules.json"

_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean-sqrt-length",
    "pooling_mode_weightedmean_tokens": "weighted-mean",
    "pooling_mode_lasttoken": "last",
}  # by the setting of 1_Pooling/config.json


def transformer_folder(folder: Path) -> Path:
    """Where the BERT itself lies: of sentence-transformers at times in `0_Transformer`, else in the folder itself."""
    modules = _modules(folder)
    return folder / modules["Transformer"] if "Transformer" in modules else folder


def sentence_embedding(folder: Path) -> dict[str, Any]:
    """The architecture's `pooling` and `normalize` that a directory of sentence-transformers has; empty for any other.

    Raises:
        CheckpointError: a file is missing or cannot be read.
        UnsupportedArchitectureError: the modules are others than a BERT, a pooling and a normalisation, in that order; or the
            pooling is another.
    """
    modules = _modules(folder)
    if not modules:
        return {}
    if list(modules) not in (["Transformer"], ["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UnsupportedArchitectureError(
            f"{folder / MODULES} lists {', '.join(modules)}, and there are equations for Transformer, Pooling and Normalize, in "
            "that order; remove what stands behind these to judge what is left"
        )
    if "Pooling" not in modules:
        return {}
    return {"pooling": _pooling(folder / modules["Pooling"] / "config.json"), "normalize": "Normalize" in modules}


def _modules(folder: Path) -> dict[str, str]:
    """The folder of each module, by the class, in order."""
    file = folder / MODULES
    if not file.is_file():
        return {}
    with reading(file, "a list of modules", CheckpointError):
        found = read_json(file, list[dict[str, Any]])
        return {str(module["type"]).rpartition(".")[2]: _inside(str(module["path"])) for module in found}


def _inside(path: str) -> str:
    """A path within the folder; `ValueError` for one that leads out of it."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ValueError(f"the path {path!r:.100} leads out of the folder")
    return path


def _pooling(file: Path) -> str:
    with reading(file, "the configuration of a pooling", CheckpointError):
        config = read_json(file, dict[str, Any])
        modes = _modes(config)
    if len(modes) != 1 or modes[0] not in _POOLINGS.values():
        raise UnsupportedArchitectureError(
            f"{file} pools by {', '.join(modes) or 'nothing'}, and there are equations for one of {', '.join(_POOLINGS.values())}"
        )
    return modes[0]


def _modes(config: Mapping[str, Any]) -> list[str]:
    """The poolings that are switched on, by our names where there is one."""
    return [_POOLINGS.get(name, name) for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
