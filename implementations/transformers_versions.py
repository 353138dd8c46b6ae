"""Checks whether transformers is installed, and differences between its versions 4 and 5."""

import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conformance import DependencyMissingError

INSTALL = "pip install 'bert-conformance[reference]'"


def require_transformers() -> None:
    """Raise `DependencyMissingError`, with the install command, if transformers is not installed."""
    try:
        import transformers  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise DependencyMissingError(f"Hugging Face's BERT needs transformers, which is not installed: {INSTALL}") from error


def is_of_version_4() -> bool:
    """Return whether the installed version is 4, which supports relative positions and pruned heads."""
    import transformers

    return int(transformers.__version__.partition(".")[0]) < 5


def without_initialization() -> AbstractContextManager[None]:
    """Return a context in which modules are built with parameters of arbitrary values, to be loaded from a checkpoint."""
    if is_of_version_4():
        from transformers.modeling_utils import no_init_weights
    else:
        from transformers.initialization import no_init_weights
    context: AbstractContextManager[None] = no_init_weights()
    return context


def tokenizer_of(vocabulary: Sequence[str], **switches: bool | None) -> Any:
    """Return the tokenizer of a vocabulary; version 4 reads the vocabulary from a file."""
    if not is_of_version_4():
        from transformers import BertTokenizer

        return BertTokenizer(vocab={piece: i for i, piece in enumerate(vocabulary)}, **switches)
    from transformers import BertTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vocab.txt"
        file.write_text("\n".join(vocabulary), "utf-8")
        return BertTokenizerFast(vocab_file=str(file), **switches)


def for_each_query(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask (B, S, S) unchanged in version 4, else as the mask (B, 1, S, S) that is added to the scores."""
    if is_of_version_4():
        return mask
    zero = torch.zeros((), dtype=dtype)
    return torch.where(mask[:, None] == 0, torch.finfo(dtype).min, zero)
