"""Validate the patterns of known failures: one that matches no name that exists is a misspelling, not an entry for another run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.util import find_spec
from operator import eq
from pathlib import Path

from conformance.candidates.registry import registered
from conformance.checks.catalogue import CHECKS, PUBLISHED
from conformance.goldens.manifest import manifest
from conformance.model.activations import table
from conformance.model.architecture import Architecture
from conformance.names import nearest

_LAYERS = 100  # of the table that patterns are held against: every number of one digit or two


@dataclass(frozen=True)
class _Kind:
    """One thing that an entry may speak of.

    Attributes:
        names: those that exist, whatever is run.
        suggested: those of which the nearest is reported.
        others: how to see all of them, where they are too many to be reported.
        elsewhere: whether a name that is none of them may exist elsewhere.
        matches: whether an existing name is spoken of.
    """

    names: Callable[[], Iterable[str]]
    suggested: Callable[[], Iterable[str]]
    others: str = ""
    elsewhere: Callable[[str], bool] = lambda name: False
    matches: Callable[[str, str], bool] = fnmatchcase


def missing(what: str, pattern: str, run: Iterable[str] = ()) -> str | None:
    """What is reported of a pattern that matches nothing that exists: with the nearest names; None where it matches.

    Args:
        what: `check`, `implementation`, `golden`, `device`, `dtype`, `activation`, or `fault`, which is a name and no pattern.
        pattern: as in a shell.
        run: what the run has of it, which exists as well.
    """
    kind, run = _KINDS[what], list(run)
    if any(kind.matches(name, pattern) for name in (*run, *kind.names())) or kind.elsewhere(pattern):
        return None
    return f"no {what} {pattern!r}; {nearest(pattern, dict.fromkeys((*run, *kind.suggested())), kind.others)}"


def _checks() -> Iterable[str]:
    return (*CHECKS, PUBLISHED)


def _implementations() -> Iterable[str]:
    return [r.name for r in registered()]


def _can_be_named(implementation: str) -> bool:
    """Whether it is `module:name` of a package here, an exported program's file, or a pattern of such; nothing is imported."""
    if any(c in implementation for c in "*?[") and any(c in implementation for c in ":./"):
        return True
    package = implementation.partition(":")[0].partition(".")[0] if ":" in implementation else ""
    try:
        here = Path(package).is_dir() or Path(f"{package}.py").is_file()
        return bool(package and (here or find_spec(package))) or Path(implementation).is_file()
    except (ValueError, ImportError, OSError):  # __main__ has no spec; a name may be too long for a path
        return package == "__main__"


def _is_ones_own(golden: str) -> bool:
    """Whether it may be a checkpoint's, or a folder."""
    try:
        return golden.startswith("checkpoint:") or Path(golden).exists()
    except OSError:
        return False


def _dtypes() -> Iterable[str]:
    from conformance.numerics.formats import FORMATS

    return FORMATS


def _is_a_device(device: str) -> bool:
    """Whether torch knows the type anywhere; one with a wildcard in it may be any."""
    from conformance.numerics.devices import not_a_device

    kind = device.partition(":")[0]
    return any(c in kind for c in "*?[") or not_a_device(kind) is None


@lru_cache(maxsize=2)
def _activations(layers: int = _LAYERS) -> Iterable[str]:
    """Of every architecture: with and without a norm on the embeddings, with heads of either sort."""
    normed = Architecture(2, 1, layers, 1, 1, 1, heads=("masked_lm", "next_sentence", "classification"))
    plain = normed.with_(embedding_norm=False, heads=("plain_masked_lm", "plain_next_sentence"))
    return tuple(dict.fromkeys(name for a in (normed, plain) for name in table(a)))


def _parts_of_activations() -> Iterable[str]:
    """Names without numbers, and patterns of what begins or ends as they do."""
    for name in _activations(1):
        parts = name.replace("layer.0.", "layer.*.").split(".")
        cuts = [i for i in range(1, len(parts)) if "*" not in parts[i - 1 : i + 1]] + [i for i, p in enumerate(parts) if p == "*"]
        yield ".".join(parts)
        yield from (".".join([*parts[:i], "*"]) for i in cuts)
        yield from (".".join(["*", *parts[i:]]) for i in cuts if parts[i] != "*")


def _faults() -> Iterable[str]:
    from conformance.faults import BY_NAME
    from conformance.faults.fitted import FITTED

    return (*BY_NAME, *(fault.name for fault in FITTED))


_KINDS: Mapping[str, _Kind] = {
    "check": _Kind(_checks, _checks),
    "implementation": _Kind(_implementations, _implementations, elsewhere=_can_be_named),
    "golden": _Kind(manifest, manifest, elsewhere=_is_ones_own),
    "device": _Kind(lambda: (), lambda: ("cuda", "mps", "xpu"), "torch knows it nowhere", _is_a_device),
    "dtype": _Kind(_dtypes, _dtypes),
    "activation": _Kind(_activations, _parts_of_activations, "`bert-conformance trace golden:tiny` prints those that there are"),
    "fault": _Kind(_faults, _faults, "`bert-conformance golden power` prints those that there are", matches=eq),
}
