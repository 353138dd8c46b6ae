"""Results of checks that count what they judge, such as training steps or rows of examples."""

from collections.abc import Callable
from dataclasses import dataclass

from conformance.results.case import Case
from conformance.results.result import Result, Searched
from conformance.results.termination import Termination, run_guarded


@dataclass
class Tried:
    """The number of things that a check has tried; it stays 0 until there is something to judge."""

    count: int = 0


def counted(case: Case, judge: Callable[[Tried], str]) -> Result:
    """Return the result of a check; no exception is raised.

    `judge` sets the number of things tried, and returns what is wrong, or an empty text.
    """
    tried = Tried()

    def judged() -> Termination:
        wrong = judge(tried)
        return Termination("fail", wrong, 1) if wrong else Termination("pass")

    termination = run_guarded(judged)
    return termination.result(case, executed=tried.count > 0 and termination.is_judged, searched=Searched(tried.count))
