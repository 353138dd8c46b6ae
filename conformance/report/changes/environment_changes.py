"""Differences between two runs in versions, machine and settings, which may explain a change. Pure functions of the headers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from conformance.results.records import Header, ImplementationRecord, Results

_VERSIONS = ("suite", "python", "torch", "transformers", "numpy", "onnxruntime")
_CONDITIONS = ("platform", "processor", "gpu", "threads", "false_alarm", "seed", "examples")


@dataclass(frozen=True)
class EnvironmentChange:
    """A property of the run's environment that differs between two runs."""

    what: str
    before: str
    after: str


def differing(before: Results, after: Results, renamed: tuple[str, str] | None = None) -> tuple[EnvironmentChange, ...]:
    """Return the differing versions of candidates, then all other differences in the headers.

    A property that one of the runs does not record is not reported. `renamed` are two candidates that are compared with each other.
    """
    if not (before.headers and after.headers):
        return ()
    rendered = ((what, *(_rendered(_said(r.headers, what)) for r in (before, after))) for what in (*_VERSIONS, *_CONDITIONS))
    return (*_candidates(before, after, renamed), *(EnvironmentChange(*of) for of in rendered if of[1] != of[2] and all(of)))


def _said(headers: Iterable[Header], what: str) -> set[object]:
    return {value for header in headers if (value := getattr(header, what)) != ""}


def _rendered(values: Iterable[object]) -> str:
    return ", ".join(sorted("none" if value is None else str(value) for value in values))


def _candidates(before: Results, after: Results, renamed: tuple[str, str] | None) -> Iterable[EnvironmentChange]:
    """Return the candidates that both runs judged in different versions; candidates with the same difference share an entry."""
    old, new = (_versions(r) for r in (before, after))
    pairs = [renamed] if renamed else [(name, name) for name in new]
    found: dict[tuple[str, str], list[str]] = {}
    for was, is_ in pairs:
        if was in old and is_ in new and old[was] != new[is_]:
            found.setdefault(_apart(old[was], new[is_]), []).append(is_)
    return [EnvironmentChange(", ".join(names), *versions) for versions, names in found.items()]


_OfCandidate = frozenset[ImplementationRecord]


def _versions(results: Results) -> Mapping[str, _OfCandidate]:
    """Return the versions of each judged candidate; there may be several if the results were merged from several runs."""
    judged = {check.implementation for check in results.checks}
    found: dict[str, set[ImplementationRecord]] = {}
    for header in results.headers:
        for name in header.implementations.keys() & judged:
            found.setdefault(name, set()).add(header.implementations[name])
    return {name: frozenset(found[name]) for name in sorted(found)}


def _apart(before: _OfCandidate, after: _OfCandidate) -> tuple[str, str]:
    """Return texts that distinguish two sets of versions: distribution and version or, if these agree, the origin."""
    versions = tuple(_rendered({f"{r.distribution} {r.version}" for r in of}) for of in (before, after))
    old, new = versions if versions[0] != versions[1] else tuple(_rendered({r.origin for r in of}) for of in (before, after))
    return old, new
