"""The search: Hypothesis draws examples, `target` drives them towards the largest error, and what fails is shrunk.

A candidate that fails in two ways is followed in the first, so that the smallest example is one of what was found. One that fails
and then does not, on the same example, depends on what it was called with before; that is a failure too, and reported as such.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, Phase, Verbosity, given, settings, target
from hypothesis import seed as seeded
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from conformance.checks.search.plan import Plan
from conformance.errors import CandidateCrash, CandidateEnded, CandidateError, CandidateTimeout, Unsupported, UsageError
from conformance.progress import report_progress
from conformance.results.example import Example
from conformance.results.law_broken import LawBroken

Failure = LawBroken | CandidateError | CandidateCrash | CandidateTimeout


@dataclass
class SearchState:
    """The state of a search, and its result.

    Attributes:
        tried: how many examples were run, shrinking not counted.
        worst: the largest error over its limit among those that hold.
        example, failure: the smallest that fails, and how.
        repeatable: whether it failed again when it was run again.
    """

    tried: int = 0
    worst: float = 0.0
    example: Example | None = None
    failure: Failure | None = None
    repeatable: bool = True


class _Falsified(Exception):
    """What Hypothesis sees of a failure: always of one kind, raised at one place."""


class _NamespacedDatabase(ExampleDatabase):
    """A database within another, under keys of its own: Hypothesis knows a test by its function, and here that is always one."""

    def __init__(self, inner: ExampleDatabase, key: str) -> None:
        super().__init__()
        self._inner, self._key = inner, key.encode()

    def save(self, key: bytes, value: bytes) -> None:
        self._inner.save(key + self._key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return self._inner.fetch(key + self._key)

    def delete(self, key: bytes, value: bytes) -> None:
        self._inner.delete(key + self._key, value)


def find_counterexample(
    holds: Callable[[Example], float],
    strategy: SearchStrategy[Example],
    plan: Plan,
    found: SearchState,
    known: Sequence[Example] = (),
    key: str = "",
    boundaries: Sequence[SearchStrategy[Example]] = (),
) -> None:
    """Try `holds` on the known examples, as they are, on those that are drawn, and on one at each boundary.

    `found` has what came of it, at any time. `holds` returns an error over its limit, for the search to enlarge, or raises what is
    a `Failure`. `key` keeps the remembered examples of several searches apart. Examples at boundaries are among the plan's, of
    which at least half are drawn freely; what fails there is shrunk as far as it still is at that boundary.

    Raises:
        Unsupported: what `holds` raised for an example, once all have been tried and none failed.
        UsageError: a known example is not varied as this check varies its own.
    """
    skips: list[Unsupported] = []
    drawn = max(plan.examples - len(boundaries), (plan.examples + 1) // 2)
    planned = len(known) + drawn + len(boundaries)

    def run_guarded(example: Example) -> float:
        found.tried += found.failure is None
        report_progress(*_progress(found, planned))
        try:
            excess = holds(example)
        except KeyError as error:
            if example in known:
                raise UsageError(f"an example that is kept for this check lacks the variation {error}") from error
            raise
        except Unsupported as why:
            skips.append(why)
            return 0.0
        except (CandidateEnded, CandidateTimeout) as failure:
            if found.failure is None:  # it is not run on a smaller one: it says the same of all
                found.example, found.failure = example, failure
            raise _Falsified from None
        except (LawBroken, CandidateError, CandidateCrash) as failure:
            if found.failure is None or type(failure) is type(found.failure):
                found.example, found.failure = example, failure
                raise _Falsified from None
            return 0.0
        found.worst = max(found.worst, excess)
        return excess

    for example in known:
        try:
            run_guarded(example)
        except _Falsified:
            return

    def searched(example: Example) -> None:
        excess = run_guarded(example)
        if excess > 0.0:  # where nothing differs there is nothing to climb
            target(excess)

    searches = [(strategy, drawn, key), *((one, 1, f"{key} at boundary {i}") for i, one in enumerate(boundaries))]
    try:
        for examples, count, name in searches:
            if count and found.failure is None:
                _configured(given(examples)(searched), replace(plan, examples=count), name)()
    except _Falsified:
        pass
    except Flaky:
        if found.failure is None:
            raise
        found.repeatable = False
    if skips and found.failure is None:
        raise skips[0]


def _progress(found: SearchState, planned: int) -> tuple[str, float]:
    """Which example is tried, and the fraction of them that were; shrinking has no end that could be foreseen."""
    if found.failure is not None:
        return f"example {found.tried} fails; a smaller one is looked for", found.tried / planned
    return f"example {found.tried} of {planned}", (found.tried - 1) / planned


def _configured(test: Callable[[], None], plan: Plan, key: str) -> Callable[[], None]:
    """With no deadline: the first call of a device takes what it takes. A seed makes the examples the same on every machine."""
    configured = settings(
        max_examples=plan.examples,
        deadline=None,
        database=None if plan.database is None else _NamespacedDatabase(plan.database, key),
        derandomize=False,
        phases=[Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )(test)
    return configured if plan.seed is None else seeded(plan.seed)(configured)
