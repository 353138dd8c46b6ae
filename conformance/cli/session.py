"""What a run is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from conformance.checks.known_failures import KnownFailure
from conformance.checks.search.plan import Plan
from conformance.errors import UsageError
from conformance.goldens.golden import Golden
from conformance.isolation.process import Limits


@dataclass(frozen=True)
class Session:
    """What is to be run.

    Attributes:
        implementations: names; none: every one that is registered.
        goldens: a name to a golden of one's own, or to None for the one that is stored under the name.
        chosen: whether the goldens were asked for by name; else each check has its usual ones.
        checks: patterns of checks' names; none: the values.
        shard: which of how many shares of the cases: `(1, 3)` is the first of three.
        limits: of the process in which a candidate runs.
        in_process: whether candidates run in this process, for a debugger; nothing limits them there.
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
    limits: Limits = field(default_factory=Limits)
    in_process: bool = False


def shard_of(text: str) -> tuple[int, int]:
    """`K/N` as numbers; `UsageError` unless 1 ≤ K ≤ N."""
    which, slash, count = text.partition("/")
    if not slash or not which.isdecimal() or not count.isdecimal() or not 1 <= int(which) <= int(count):
        raise UsageError(f"--shard {text}: expected K/N, as 1/3 for the first of three")
    return int(which), int(count)
