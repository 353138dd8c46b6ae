"""What of how two runs were made may explain a change: other versions, another machine, another plan. Pure functions of headers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from conformance.results.records import Header, ImplementationRecord, Results

_OF_HEADER = (
    "suite",
    "python",
    "torch",
    "transformers",
    "numpy",
    "onnxruntime",
    "platform",
    "processor",
    "gpu",
    "threads",
    "false_alarm",
    "seed",
    "examples",
)


@dataclass(frozen=True)
class EnvironmentChange:
    """Something about how the two were run that is not the same, and so may explain a change."""

    what: str
    before: str
    after: str


def differing(before: Results, after: Results, renamed: tuple[str, str] | None = None) -> tuple[EnvironmentChange, ...]:
    """Versions of candidates, then all else; `renamed` are two candidates that are compared with each other.

    What one of the runs does not say is not known to differ.
    """
    if not (before.headers and after.headers):
        return ()
    rendered = ((what, *(_rendered(_said(r.headers, what)) for r in (before, after))) for what in _OF_HEADER)
    return (*_candidates(before, after, renamed), *(EnvironmentChange(*of) for of in rendered if of[1] != of[2] and all(of)))


def _said(headers: Iterable[Header], what: str) -> set[object]:
    return {value for header in headers if (value := getattr(header, what)) != ""}


def _rendered(values: Iterable[object]) -> str:
    return ", ".join(sorted("none" if value is None else str(value) for value in values))


def _candidates(before: Results, after: Results, renamed: tuple[str, str] | None) -> Iterable[EnvironmentChange]:
    """Candidates that both runs judged, in other versions; those of which the same is to be reported, together."""
    old, new = (_versions(r) for r in (before, after))
    pairs = [renamed] if renamed else [(name, name) for name in new]
    found: dict[tuple[str, str], list[str]] = {}
    for was, is_ in pairs:
        if was in old and is_ in new and old[was] != new[is_]:
            found.setdefault(_apart(old[was], new[is_]), []).append(is_)
    return [EnvironmentChange(", ".join(names), *versions) for versions, names in found.items()]


_Versions = frozenset[ImplementationRecord]


def _versions(results: Results) -> Mapping[str, _Versions]:
    """Of each candidate that was judged: its version, or several where the run was put together of several."""
    judged = {check.implementation for check in results.checks}
    found: dict[str, set[ImplementationRecord]] = {}
    for header in results.headers:
        for name in header.implementations.keys() & judged:
            found.setdefault(name, set()).add(header.implementations[name])
    return {name: frozenset(found[name]) for name in sorted(found)}


def _apart(before: _Versions, after: _Versions) -> tuple[str, str]:
    """By distribution and version, or where these are the same by origin."""
    versions = tuple(_rendered({f"{r.distribution} {r.version}" for r in of}) for of in (before, after))
    old, new = versions if versions[0] != versions[1] else tuple(_rendered({r.origin for r in of}) for of in (before, after))
    return old, new
