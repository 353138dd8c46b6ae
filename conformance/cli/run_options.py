"""The options of a run, and its cases: every requested check for every candidate, golden and dtype."""

import hashlib
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from conformance.candidates.lookup import is_object, of_other_packages, require_known
from conformance.candidates.recorded_trace import Recorded, digests_of, recorded_on, trace_of
from conformance.checks.catalogue import CHECKS, named
from conformance.checks.check import Check, Plan
from conformance.checks.known_failures import read
from conformance.checks.run_header import short_digest
from conformance.errors import DependencyMissingError, UsageError
from conformance.goldens.custom_golden import from_directory
from conformance.goldens.golden import Golden, load_golden
from conformance.goldens.manifest import DEFAULT_GOLDENS, is_folder, located, manifest
from conformance.goldens.recipe import packaged_folder
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


def options_of(arguments: Namespace) -> RunOptions:
    """Return the options that the arguments of `run` state.

    If recorded traces are judged and no golden is named, the goldens, device and dtypes are those of the traces.

    Raises:
        UsageError: the arguments contradict each other or the traces.
    """
    if not arguments.checkpoint and (arguments.text or arguments.batch):
        raise UsageError("--text and --batch are inputs for a checkpoint; give one with --checkpoint DIR")
    traces = _traces(arguments.implementation)
    of_user = from_directory(arguments.checkpoint, arguments.text, arguments.batch) if arguments.checkpoint else None
    if traces and not arguments.golden:
        goldens = _recorded_on(traces, of_user, keeps_inputs=bool(arguments.text or arguments.batch))
    else:
        usual = _usual_goldens() if arguments.implementation else manifest()
        goldens = _goldens(arguments.golden or ([] if of_user else usual), of_user)
    devices = [arguments.device] if arguments.device else list(dict.fromkeys(trace.source.device for trace in traces)) or ["cpu"]
    if len(devices) > 1:
        raise UsageError(f"the traces were recorded on {' and '.join(devices)}: judge the traces of one device at a time")
    return RunOptions(
        arguments.implementation,
        goldens,
        devices[0],
        arguments.dtype or list(dict.fromkeys(trace.source.dtype for trace in traces)) or ["float32"],
        chosen=bool(arguments.golden),
        checks=arguments.check,
        require=arguments.require_activations,
        known=read(arguments.known_failures) if arguments.known_failures else (),
        plan=Plan(arguments.examples, arguments.seed, depth=arguments.depth),
        limits=ResourceLimits(arguments.timeout, arguments.memory, network=arguments.network),
        in_process=arguments.in_process,
    )


def _traces(names: Sequence[str]) -> list[Recorded]:
    """Return the recorded traces among the candidates.

    An invalid trace is reported when it is run; its `UsageError` is raised here only if no candidate is valid.
    """
    traces, errors = [], []
    for trace in filter(None, map(trace_of, names)):
        try:
            traces.append(trace.recorded)
        except UsageError as error:
            errors.append(error)
    if errors and len(errors) == len(names):
        raise errors[0]
    return traces


def _usual_goldens() -> list[str]:
    """Return the goldens on which a named candidate is run if none is requested: the smallest and, if there, the trained one."""
    with suppress(DependencyMissingError):
        packaged_folder()
        return [DEFAULT_GOLDENS[0], "minilm"]
    return [DEFAULT_GOLDENS[0]]


def _goldens(names: Iterable[str], of_user: Golden | None) -> dict[str, Golden | None]:
    """Return goldens by name: that of the user's checkpoint, those in folders, and None for a stored one; `*` names all of these.

    Raises:
        UsageError: two have the same name, so that their results could not be distinguished.
    """
    goldens: dict[str, Golden | None] = {of_user.name: of_user} if of_user else {}
    for each in dict.fromkeys(name for pattern in names for name in (manifest() if pattern == "*" else [pattern])):
        loaded = load_golden(each) if is_folder(each) else None
        name = loaded.name if loaded else each
        if name in goldens:
            raise UsageError(f"{each}: another requested golden is also named {name!r}; run on one at a time")
        goldens[name] = loaded
    return goldens


def _recorded_on(traces: Sequence[Recorded], of_user: Golden | None, *, keeps_inputs: bool) -> dict[str, Golden | None]:
    """Return the goldens on which traces were recorded, by name; `of_user` is that of a local copy of their checkpoint."""
    if keeps_inputs:
        raise UsageError("a recorded trace has its own inputs; omit --text and --batch")
    goldens: dict[str, Golden] = {}
    for trace in traces:
        golden = recorded_on(trace, of_user)
        if digests_of(goldens.setdefault(golden.name, golden).batches) != digests_of(golden.batches):
            raise UsageError(f"two traces were recorded on different inputs of {golden.name}: judge one at a time")
    return {name: golden if golden.origin else None for name, golden in goldens.items()}


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
    _holding([name for name, golden in options.goldens.items() if golden is None], located)
    names = options.implementations or of_other_packages()
    checks = checks_of(options.checks)
    alone = {"values", "outputs"} & {check.name for check in checks} == {"values"}  # for instrumented candidates, outputs are added

    def is_judged_twice(name: str) -> bool:
        require_known(name)
        return (alone or is_object(name)) and is_instrumented(name)

    instrumented = _holding(names, is_judged_twice)
    cases = []
    for name in names:
        for golden, of_user in options.goldens.items():
            asked = [c.name for c in checks if options.chosen or of_user or c.every_golden or golden in DEFAULT_GOLDENS]
            asked += ["outputs"] if alone and name in instrumented and "values" in asked else []
            cases += [Case(name, golden, options.device, dtype, check) for dtype in options.dtypes for check in asked]
    return list(dict.fromkeys(cases))


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
    holding, errors = set(), dict[str, None]()
    for name in names:
        try:
            if condition(name):
                holding.add(name)
        except UsageError as error:
            errors[str(error)] = None
    if errors:
        raise UsageError("\n".join(errors))
    return holding
