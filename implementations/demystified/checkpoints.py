"""Checkpoints of training: a Hugging Face directory of the network, with the state that training needs to resume.

A directory is written under a temporary name and renamed when it is complete, so that the previous checkpoint survives a kill at
any moment.
"""

import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from conformance import Architecture

from .candidate import PARAMETERS
from .trainer import Trainer
from .wordpiece import pieces

_NAMED = re.compile(r"checkpoint-(\d{9})")


def newest(folder: Path) -> Path | None:
    """Return the checkpoint with the most steps, or None."""
    return max((path for path in folder.glob("checkpoint-*") if _NAMED.fullmatch(path.name)), default=None)


def save(folder: Path, trainer: Trainer, architecture: Architecture, tokenizer: Tokenizer) -> Path:
    """Write a checkpoint, remove the older ones, and return its path."""
    path, partial = folder / f"checkpoint-{trainer.steps:09d}", folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    config = {"model_type": "bert", "architectures": ["BERTLM"], **architecture.as_dict()}
    (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (partial / "vocab.txt").write_text("\n".join(pieces(tokenizer)) + "\n")
    tokenizer.save(str(partial / "tokenizer.json"))
    own = trainer.model.state_dict()
    parameters = _names(architecture.num_hidden_layers)
    save_file({theirs: own[name].detach().cpu().contiguous() for name, theirs in parameters.items()}, partial / "model.safetensors")
    save_file({name: tensor.cpu().contiguous() for name, tensor in trainer.state().items()}, partial / "training.safetensors")
    shutil.rmtree(path, ignore_errors=True)
    partial.rename(path)
    for older in folder.glob("checkpoint-*"):
        if older != path:
            shutil.rmtree(older)
    return path


def restore(path: Path, trainer: Trainer, architecture: Architecture) -> None:
    """Load parameters, moments and the number of steps from a checkpoint."""
    stored = load_file(path / "model.safetensors")
    with torch.no_grad():
        for name, theirs in _names(architecture.num_hidden_layers).items():
            trainer.model.get_parameter(name).copy_(stored[theirs])
    trainer.restore(load_file(path / "training.safetensors"), int(path.name.removeprefix("checkpoint-")))


def _names(layers: int) -> dict[str, str]:
    """Return a map from the module's parameter names to Hugging Face's."""
    return {
        own.format(layer=i): theirs.format(layer=i)
        for own, theirs in PARAMETERS.items()
        for i in range(layers if "{layer}" in own else 1)
    }
