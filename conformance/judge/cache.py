"""Cache of reference data that depend on no candidate: accumulated sigma of a network on a batch, and losses of a training loop.

An entry is a safetensors file. Its name is the digest of everything that the entry is computed from: checkpoint, architecture,
batch, arithmetic, error bounds of library functions, training settings, and the code. The file holds that name and the digest of
its own content: an entry that is damaged, or that another one has replaced, is recomputed with a warning. This guards against
accidents: whoever can write to the folder can also write an entry that agrees with itself. Entries are stored in the platform's
cache directory, or in the directory named by the environment variable BERT_CONFORMANCE_CACHE; the value `off` disables the cache.
When the entries exceed LIMIT bytes, the least recently used ones are removed.
"""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path
from safetensors import SafetensorError
from safetensors.numpy import save_file

from conformance.judge.global_error import accumulated_sigma as sampled_sigma
from conformance.judge.loss_curve import Expected, TrainedLoss
from conformance.judge.loss_curve import expected as sampled_losses
from conformance.model.checkpoint import Checkpoint, content_digest
from conformance.model.files import open_safetensors
from conformance.model.training import Training, at
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.function_error_bounds import FunctionErrorBounds
from conformance.oracle import Network

VARIABLE = "BERT_CONFORMANCE_CACHE"
OFF = "off"
LIMIT = 256 * 2**20  # bytes; an entry of a base-sized network has 1.3 MiB: 170,162 float64 values
SUFFIX = ".safetensors"
PACKAGE = Path(__file__).parents[1]
_CODE = ("model", "oracle", "numerics", "judge")  # packages whose code determines an entry's content


class CacheWarning(UserWarning):
    """A cache entry is damaged or cannot be written."""


def folder() -> Path | None:
    """Return the cache directory, or None if the cache is disabled."""
    setting = os.environ.get(VARIABLE, "")
    if setting == OFF:
        return None
    return Path(setting) if setting else user_cache_path("bert-conformance")


def entries() -> list[Path]:
    """Return the paths of all entries, least recently used first."""
    home = folder()
    found = home.glob(f"*{SUFFIX}") if home else ()
    return sorted(found, key=lambda path: path.stat().st_mtime)


def clear() -> int:
    """Remove every entry and return how many were removed."""
    found = entries()
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def cached_sigma(network: Network, arithmetic: Arithmetic, checkpoint: Checkpoint) -> Iterator[tuple[str, Array]]:
    """Yield the same pairs as `judge.global_error.accumulated_sigma`, from the cache if possible; store what is sampled whole.

    Args:
        network: the oracle's network; the cache is not used if it is not repeatable.
        arithmetic: the arithmetic model.
        checkpoint: the weights before they are rounded to the arithmetic's storage format.
    """
    if not network.is_repeatable:
        return sampled_sigma(network, arithmetic)
    key = _key(network, arithmetic, arithmetic.functions, checkpoint.digest)
    return _kept(key, list(network.table), lambda: sampled_sigma(network, arithmetic))


def expected_losses(
    loss: TrainedLoss,
    start: Array,
    training: Training,
    dtype: str,
    device: str,
    functions: FunctionErrorBounds,
    checkpoint: Checkpoint,
) -> Iterator[Expected]:
    """Yield the values of `judge.loss_curve.expected`, from the cache if possible; `start` holds parameters of `checkpoint`."""
    said = (training, dtype, device, sorted(loss.layout.shapes.items()))
    names = [at(step, "loss") for step in range(1, training.max_steps + 1)]

    def computed() -> Iterator[tuple[str, Array]]:
        for name, found in zip(names, sampled_losses(loss, start, training, dtype, device, functions), strict=True):
            yield name, np.array([found.loss, found.spread])

    for _, (value, spread) in _kept(_key(loss.network, said, functions, checkpoint.digest), names, computed):
        yield Expected(float(value), float(spread))


def _kept(key: str, names: Sequence[str], computed: Callable[[], Iterator[tuple[str, Array]]]) -> Iterator[tuple[str, Array]]:
    """Yield (name, value) pairs in the order of `names`, from the cache, or else computed and then stored."""
    home = folder()
    if home is None:
        yield from computed()
        return
    path = home / f"{key}{SUFFIX}"
    known = _read(path, names) if path.exists() else None
    if known is not None:
        yield from known.items()
        return
    found: dict[str, Array] = {}
    for name, value in computed():
        found[name] = value
        if len(found) == len(names):  # A consumer that takes the last pair may not resume the generator.
            _write(path, found)
        yield name, value


def _key(network: Network, asked: object, functions: FunctionErrorBounds, checkpoint: str) -> str:
    """Return the digest of everything that an entry is computed from; `asked` identifies the computation by its `repr`."""
    said = (network.architecture, network.source, asked, sorted(functions.bounds.items()), code_digest(), np.__version__)
    parts = (checkpoint, content_digest(network.batch.arrays()), repr(said))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@cache
def code_digest(package: Path = PACKAGE) -> str:
    """Return a digest of the source files and tables in the subpackages of `_CODE`; `package` is the folder of `conformance`."""
    digest = hashlib.sha256()
    for name in _CODE:
        for path in sorted(path for suffix in ("py", "json") for path in (package / name).rglob(f"*.{suffix}")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path, names: Sequence[str]) -> Mapping[str, Array] | None:
    """Return an entry's arrays in the order of `names`, or None, with a warning, if the file is damaged."""
    try:
        with open_safetensors(path) as stored:
            found = {name: as_array(stored.get_tensor(name)) for name in stored.keys()}  # noqa: SIM118  # no mapping
            written = stored.metadata()
        if set(found) != set(names) or written != {"entry": path.stem, "digest": content_digest(found)}:
            raise ValueError("its content is not what was written")
    except (OSError, SafetensorError, ValueError) as error:
        warnings.warn(f"the cache's entry {path} is damaged ({error}); it is computed anew", CacheWarning, stacklevel=2)
        return None
    with suppress(OSError):
        os.utime(path)
    return {name: found[name] for name in names}


def _write(path: Path, sigma: Mapping[str, Array]) -> None:
    """Write an entry atomically, so that a reader sees all of it or none; then remove old entries beyond LIMIT."""
    arrays = {name: np.ascontiguousarray(value) for name, value in sigma.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix="unfinished-", delete=False) as file:
            pass
        save_file(arrays, file.name, {"entry": path.stem, "digest": content_digest(arrays)})
        os.replace(file.name, path)
        _make_room(path)
    except OSError as error:
        warnings.warn(f"the cache's entry {path} cannot be written ({error})", CacheWarning, stacklevel=2)


def _make_room(newest: Path) -> None:
    found = [path for path in entries() if path != newest]
    size = newest.stat().st_size + sum(path.stat().st_size for path in found)
    for path in found:
        if size <= LIMIT:
            return
        size -= path.stat().st_size
        path.unlink(missing_ok=True)
