"""Progress and time limit of a search: the search ends early when its time runs out, and states what was left out."""

import math
from collections.abc import Callable, Sequence
from contextvars import copy_context
from threading import RLock
from typing import TypeVar

from conformance.errors import UsageError
from conformance.judge.threads import on_all_cores
from conformance.progress import report_progress

Item = TypeVar("Item")
Result = TypeVar("Result")

RIGHT, ELSE, FAULTS = "the right network", "other poolings, formats and inputs", ("one mistake", "two mistakes", "three mistakes")
STAGES = (RIGHT, ELSE, *(stage for faults in FAULTS for stage in (faults, f"verifying {faults}")))


class SearchBudget:
    """The time limit and the progress of a search.

    Attributes:
        cut_short: description of what was left out; empty if nothing was.
    """

    def __init__(self, time_limit: float | None, clock: Callable[[], float]) -> None:
        """Start the clock.

        Args:
            time_limit: time limit in seconds; None for no limit.
            clock: function that returns the time in seconds.

        Raises:
            UsageError: the limit is not a positive number.
        """
        if time_limit is not None and (
            isinstance(time_limit, bool) or not isinstance(time_limit, int | float) or not time_limit > 0
        ):
            raise UsageError(f"the time limit is {time_limit!r}, expected a positive number of seconds")
        self._clock, self._limit = clock, time_limit
        self._end = math.inf if time_limit is None else clock() + time_limit
        self._stage, self._of, self._done = RIGHT, 0, 0
        self._reports = True
        self._lock = RLock()
        self.cut_short = ""

    @classmethod
    def unlimited(cls) -> "SearchBudget":
        """Return a budget without a limit that reports no progress, for a search that is a small part of another task."""
        budget = cls(None, lambda: 0.0)
        budget._reports = False
        return budget

    def is_spent(self) -> bool:
        """Return whether the time has run out; if so, record what is left out."""
        with self._lock:
            if not self.cut_short and self._clock() >= self._end:
                self.cut_short = self._sentence()
            return bool(self.cut_short)

    def begin(self, stage: str, of: int) -> None:
        """Begin a stage of `of` tries, or of an unknown number if 0, and report it."""
        self._stage, self._of, self._done = stage, of, 0
        if self._reports:
            report_progress(stage, STAGES.index(stage) / len(STAGES))

    def take_one(self) -> bool:
        """Return whether the next try of this stage may start; if so, count and report it."""
        with self._lock:
            if self.is_spent():
                return False
            self._done += 1
            if self._reports:
                share = (STAGES.index(self._stage) + (self._done - 1) / self._of) / len(STAGES)
                report_progress(f"{self._stage}: {self._done} of {self._of}", share)
            return True

    def of_each(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return `function(item)` for the items of this stage that there is time for, in order, computed on all cores."""

        def tried(pair: tuple[Callable[..., list[Result]], Item]) -> list[Result]:
            run, item = pair
            return run(lambda: [function(item)] if self.take_one() else [])

        # Context variables, which hold the progress callback, are copied to each thread.
        found = on_all_cores(tried, [(copy_context().run, item) for item in items])
        return [result for some in found for result in some]

    def _sentence(self) -> str:
        later = [FAULTS[i] for i in range(len(FAULTS)) if STAGES.index(FAULTS[i]) > STAGES.index(self._stage)]
        left = f"with {self._of - self._done} of at most {self._of} tries left" if self._of else "before its first try"
        rest = f"; sets of {' or '.join(later)} were not tried either" if later else ""
        return f"the search was cut short by its time limit of {self._limit:g} s at the stage of {self._stage}, {left}{rest}"
