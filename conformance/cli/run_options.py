"""The options of a run, and its cases: every requested check for every candidate, golden and dtype."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from conformance.candidates.lookup import is_object, of_other_packages, require_known
from conformance.checks.catalogue import CHECKS, named
from conformance.checks.check import Check, Plan
from conformance.checks.run_header import short_digest
from conformance.errors import UsageError
from conformance.goldens.golden import Golden
from conformance.goldens.manifest import DEFAULT_GOLDENS, located
from conformance.isolation.worker_process import ResourceLimits
from conformance.numerics.devices import require_name
from conformance.numerics.formats import format_named
from conformance.results.case import Case, KnownFailure


@dataclass(frozen=True)
class RunOptions:
    """The options of a run.

    Attributes:
        implementations: names of candidates; empty: those that other packages register.
        goldens: goldens by name: a user's golden, or None for a stored golden of that name.
        chosen: whether the goldens were requested by name; if not, each check runs on its default goldens.
        checks: patterns of check names; empty: the check `values`.
        require: patterns of activations that must be observed.
        known: the known failures.
        limits: resource limits of a candidate's process.
        in_process: whether candidates run in this process, for a debugger; there are then no limits.
    """

    implementations: Sequence[str]
    goldens: Mapping[str, Golden | None]
    device: str
    dtypes: Sequence[str]
    chosen: bool = True
    checks: Sequence[str] = ()
    require: Sequence[str] = ()
    known: Sequence[KnownFailure] = ()
    plan: Plan = field(default_factory=Plan)
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    in_process: bool = False


def settings_of(options: RunOptions) -> dict[str, str]:
    """Return the required activations and the known failures, in words, as `results.records.Header.settings` has them."""
    entries = [{k: v for k, v in vars(entry).items() if k != "where"} for entry in options.known]
    return {
        "the required activations": ", ".join(sorted(options.require)) or "none",
        "the known failures": f"{len(entries)} ({short_digest(entries)})" if entries else "none",
    }


def limits_of(options: RunOptions) -> dict[str, str]:
    """Return the limits of candidates in words."""
    limits = options.limits
    said = {"the time limit": limits.seconds, "the memory limit": limits.memory}
    allowed = {"the network": limits.network, "the isolation": not options.in_process}
    return {k: f"{v:g}" if v else "none" for k, v in said.items()} | {k: "on" if v else "off" for k, v in allowed.items()}


def cases_of(options: RunOptions, is_instrumented: Callable[[str], bool]) -> list[Case]:
    """Return the cases of a run without duplicates, grouped by candidate.

    `is_instrumented` loads a candidate and returns whether observing its activations may change how it is run; it raises
    `CandidateNameError` if there is no such candidate.

    Raises:
        UsageError: a candidate, golden, dtype or device has a name that does not exist, or a pattern matches no check; the message
            has a line for each name.
    """
    _holding(options.dtypes, format_named)
    _holding([options.device], require_name)
    _holding([name for name, own in options.goldens.items() if own is None], located)
    names = options.implementations or of_other_packages()
    checks = checks_of(options.checks)
    alone = {"values", "outputs"} & {check.name for check in checks} == {"values"}  # for instrumented candidates, outputs are added

    def is_judged_twice(name: str) -> bool:
        require_known(name)
        return (alone or is_object(name)) and is_instrumented(name)

    instrumented = _holding(names, is_judged_twice)
    found = []
    for name in names:
        for golden, own in options.goldens.items():
            asked = [c.name for c in checks if options.chosen or own or c.every_golden or golden in DEFAULT_GOLDENS]
            asked += ["outputs"] if alone and name in instrumented and "values" in asked else []
            found += [Case(name, golden, options.device, dtype, check) for dtype in options.dtypes for check in asked]
    return list(dict.fromkeys(found))


def digest(cases: Sequence[Case]) -> str:
    """Return the digest of all cases of a run, which identifies it."""
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


def _holding(names: Sequence[str], condition: Callable[[str], object]) -> set[str]:
    """Return the names for which a condition holds; raise the errors of all names for which it raises `UsageError`.

    Nothing is run if a name is misspelt, since the results without it would replace earlier ones.
    """
    found, errors = set(), dict[str, None]()
    for name in names:
        try:
            if condition(name):
                found.add(name)
        except UsageError as error:
            errors[str(error)] = None
    if errors:
        raise UsageError("\n".join(errors))
    return found
