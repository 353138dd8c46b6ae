"""The cases of a run: every requested check for every candidate, golden and dtype."""

import hashlib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from conformance.candidates.lookup import is_object, registered, require_known
from conformance.checks.catalogue import CHECKS, PUBLISHED, named
from conformance.checks.check import Check
from conformance.checks.published import published_of
from conformance.cli.run_options import RunOptions
from conformance.errors import UsageError
from conformance.goldens.manifest import DEFAULT_GOLDENS, located
from conformance.numerics.devices import require_name
from conformance.numerics.formats import format_named
from conformance.results.case import Case


def cases_of(options: RunOptions, is_instrumented: Callable[[str], bool]) -> list[Case]:
    """Return the cases of a run without duplicates, grouped by candidate.

    Args:
        options: the requested run.
        is_instrumented: loads a candidate and returns whether observing its activations may change how it is run; raises
            `CandidateNameError` if there is no such candidate.

    Raises:
        UsageError: all names of one kind (candidates, goldens, dtypes, device) are invalid, so that nothing can be run; or a
            pattern matches no check.
    """
    _require_names(options)
    names = options.implementations or list(dict.fromkeys(r.name for r in registered()))
    checks = checks_of(options.checks)
    alone = _judges_outputs_alone(checks)
    instrumented = _holding([name for name in names if alone or is_object(name)], names, is_instrumented)
    published = {name for name, own in options.goldens.items() if own and published_of(own)}
    found = []
    for name in names:
        for golden, own in options.goldens.items():
            asked = [c.name for c in checks if options.chosen or own or c.every_golden or golden in DEFAULT_GOLDENS]
            asked += ["outputs"] if alone and name in instrumented and "values" in asked else []
            asked += [PUBLISHED] if golden in published else []
            found += [Case(name, golden, options.device, dtype, check) for dtype in options.dtypes for check in asked]
    return list(dict.fromkeys(found))


def digest(cases: Sequence[Case]) -> str:
    """Return the digest of all cases of a run, by which the shards of one run are recognized."""
    return hashlib.sha256("\n".join(map(str, cases)).encode()).hexdigest()


def checks_of(patterns: Sequence[str]) -> list[Check]:
    """Return the checks that match a pattern, in the catalogue's order; no pattern: the check `values`.

    Raises:
        UnknownNameError: a pattern matches no check.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in CHECKS):
            named(pattern)
    return [c for name, c in CHECKS.items() if any(fnmatchcase(name, p) for p in patterns or ("values",))]


def _judges_outputs_alone(checks: Sequence[Check]) -> bool:
    """Return whether `values` is requested without `outputs`; for instrumented candidates, `outputs` is then added."""
    names = {check.name for check in checks}
    return "values" in names and "outputs" not in names


def _require_names(options: RunOptions) -> None:
    _require_any(options.implementations, require_known)
    _require_any(options.dtypes, format_named)
    _require_any([options.device], require_name)
    _require_any([name for name, own in options.goldens.items() if own is None], located)


def _require_any(names: Sequence[str], require: Callable[[str], object]) -> None:
    """Raise the errors if all names are invalid, since a misspelling must not overwrite earlier results."""
    _holding(names, names, lambda name: require(name) is None)


def _holding(asked: Sequence[str], names: Sequence[str], condition: Callable[[str], bool]) -> set[str]:
    """Return the names for which a condition holds. A name for which it raises `UsageError` is invalid.

    Raises:
        UsageError: all of `names` are invalid; the message has a line for each.
    """
    found, errors = set(), {}
    for name in asked:
        try:
            if condition(name):
                found.add(name)
        except UsageError as error:
            errors[name] = str(error)
    if names and len(errors) == len(set(names)):
        raise UsageError("\n".join(dict.fromkeys(errors.values())))
    return found
