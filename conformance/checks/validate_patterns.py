"""Validate the patterns of known failures: a pattern that matches no existing name is a misspelling, not for another run."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.util import find_spec
from itertools import chain
from operator import eq
from pathlib import Path

from conformance.candidates.lookup import registered
from conformance.checks.catalogue import CHECKS, PUBLISHED
from conformance.goldens.manifest import manifest
from conformance.model.activations import parameter_shapes, table
from conformance.model.architecture import Architecture
from conformance.names import nearest
from conformance.numerics.devices import USUAL

_LAYERS = 100  # layers of the table against which patterns are matched: covers all numbers of one or two digits


@dataclass(frozen=True)
class _Kind:
    """A kind of name in an entry, such as the name of a check or of a device.

    Attributes:
        names: returns the names that exist regardless of the run.
        suggested: returns the names of which the nearest is suggested.
        others: how to list all names, if there are too many to report.
        elsewhere: whether a name that is not among them may exist elsewhere.
        matches: function of an existing name and a pattern that returns whether they match.
    """

    names: Callable[[], Iterable[str]]
    suggested: Callable[[], Iterable[str]]
    others: str = ""
    elsewhere: Callable[[str], bool] = lambda name: False
    matches: Callable[[str, str], bool] = fnmatchcase


def missing(what: str, pattern: str, run: Iterable[str] = ()) -> str | None:
    """Return a message with the nearest names if a pattern matches no existing name; None if it matches one.

    `what` is `check`, `implementation`, `golden`, `device`, `dtype`, `activation`, or `fault`, which takes a name, not a pattern.
    The names of this kind in the `run` count as existing.
    """
    kind, run = _KINDS[what], list(run)
    if any(kind.matches(name, pattern) for name in (*run, *kind.names())) or kind.elsewhere(pattern):
        return None
    return f"no {what} {pattern!r}; {nearest(pattern, dict.fromkeys((*run, *kind.suggested())), kind.others)}"


def _checks() -> Iterable[str]:
    return (*CHECKS, PUBLISHED)


def _implementations() -> Iterable[str]:
    return list(dict.fromkeys(r.name for r in registered()))


def _can_be_named(implementation: str) -> bool:
    """Return whether a name is `module:name` of a package found here, a file, or a pattern of these; nothing is imported."""
    if any(c in implementation for c in "*?[") and any(c in implementation for c in ":./"):
        return True
    package = implementation.partition(":")[0].partition(".")[0] if ":" in implementation else ""
    try:
        here = Path(package).is_dir() or Path(f"{package}.py").is_file()
        return bool(package and (here or find_spec(package))) or Path(implementation).is_file()
    except (ValueError, ImportError, OSError):  # __main__ has no spec, and a name may be too long for a path
        return package == "__main__"


def _is_custom_golden(golden: str) -> bool:
    """Return whether a golden's name has the prefix `checkpoint:` or is an existing path."""
    try:
        return golden.startswith("checkpoint:") or Path(golden).exists()
    except OSError:
        return False


def _dtypes() -> Iterable[str]:
    from conformance.numerics.formats import FORMATS

    return FORMATS


def _is_a_device(device: str) -> bool:
    """Return whether torch has this device type on any platform; a type with a wildcard may be any."""
    from conformance.numerics.devices import not_a_device

    kind = device.partition(":")[0]
    return any(c in kind for c in "*?[") or not_a_device(kind) is None


@lru_cache(maxsize=2)
def _activations(layers: int = _LAYERS) -> Iterable[str]:
    """Return the activations of architectures with every part that only some have."""
    return tuple(dict.fromkeys(name for a in _architectures(layers) for name in table(a)))


def _architectures(layers: int) -> tuple[Architecture, ...]:
    normed = Architecture(2, 1, layers, 1, 1, 1, heads=("masked_lm", "next_sentence", "classification"))
    return (
        normed,
        normed.with_(embedding_norm=False, heads=("plain_masked_lm", "plain_next_sentence")),
        normed.with_(heads=("question_answering",), pooling="mean", normalize=True),
        normed.with_(heads=("token_classification",), position_embedding_type="relative_key_query"),
        normed.with_(heads=("multiple_choice",), is_decoder=True, add_cross_attention=True),
    )


def _is_of_training(pattern: str) -> bool:
    """Return whether a pattern matches a gradient, or a tensor in a step of training, whatever the number of the step."""
    first = re.sub(r"^step\.\d+\.", "step.1.", pattern)
    names = chain(_activations(), (name for a in _architectures(_LAYERS) for name in parameter_shapes(a)))
    forms = ("{}.grad", "step.1.{}", "step.1.{}.grad")
    return any(fnmatchcase(form.format(name), first) for name in names for form in forms)


def _parts_of_activations() -> Iterable[str]:
    """Yield names with `*` for the layer numbers, and patterns that match their beginnings or endings."""
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
    "golden": _Kind(manifest, manifest, elsewhere=_is_custom_golden),
    "device": _Kind(lambda: (), lambda: USUAL, "torch knows it nowhere", _is_a_device),
    "dtype": _Kind(_dtypes, _dtypes),
    "activation": _Kind(
        _activations, _parts_of_activations, "`bert-conformance trace golden:tiny` prints those that there are", _is_of_training
    ),
    "fault": _Kind(_faults, _faults, "`bert-conformance golden power` prints those that there are", matches=eq),
}
