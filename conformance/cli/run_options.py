"""The options of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from conformance.checks.check import Plan
from conformance.checks.known_failures import KnownFailure
from conformance.checks.run_header import short_digest
from conformance.errors import UsageError
from conformance.goldens.golden import Golden
from conformance.isolation.worker_process import ResourceLimits


@dataclass(frozen=True)
class RunOptions:
    """The options of a run.

    Attributes:
        implementations: names of candidates; empty: all registered ones.
        goldens: goldens by name: a user's golden, or None for a stored golden of that name.
        device: torch device string.
        dtypes: names of dtypes.
        chosen: whether the goldens were requested by name; if not, each check runs on its default goldens.
        checks: patterns of check names; empty: the check `values`.
        require: patterns of activations that must be observed.
        known: the known failures.
        plan: options of the searches.
        shard: number of the shard and number of shards: `(1, 3)` is the first of three.
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
    shard: tuple[int, int] = (1, 1)
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


def shard_of(text: str) -> tuple[int, int]:
    """Return the numbers in `K/N`; raise `UsageError` unless 1 ≤ K ≤ N."""
    which, slash, count = text.partition("/")
    if not slash or not which.isdecimal() or not count.isdecimal() or not 1 <= int(which) <= int(count):
        raise UsageError(f"--shard {text}: expected K/N, such as 1/3 for the first of three shards")
    return int(which), int(count)
