"""What is kept of training: a Hugging Face directory of the network, and beside it what training needs to go on.

A directory is written under another name and renamed when it is whole, so that a kill at any moment leaves the one before.
"""

import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from conformance import Architecture
from implementations.demystified.candidate import PARAMETERS
from implementations.demystified.trainer import Trainer
from implementations.demystified.wordpiece import pieces

_NAMED = re.compile(r"checkpoint-(\d{9})")


def newest(folder: Path) -> Path | None:
    """The checkpoint of the most steps."""
    return max((path for path in folder.glob("checkpoint-*") if _NAMED.fullmatch(path.name)), default=None)


def save(folder: Path, trainer: Trainer, architecture: Architecture, tokenizer: Tokenizer) -> Path:
    """Write a checkpoint, and remove those before it."""
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
    """Parameters, moments and the number of steps of a checkpoint."""
    stored = load_file(path / "model.safetensors")
    with torch.no_grad():
        for name, theirs in _names(architecture.num_hidden_layers).items():
            trainer.model.get_parameter(name).copy_(stored[theirs])
    trainer.restore(load_file(path / "training.safetensors"), int(path.name.removeprefix("checkpoint-")))


def _names(layers: int) -> dict[str, str]:
    """The module's names of parameters to Hugging Face's."""
    return {
        own.format(layer=i): theirs.format(layer=i)
        for own, theirs in PARAMETERS.items()
        for i in range(layers if "{layer}" in own else 1)
    }
