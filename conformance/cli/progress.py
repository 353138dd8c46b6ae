"""Progress: on a terminal which case runs, what it is doing, what has failed so far and the time that is left; else what ended."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from conformance.names import printable
from conformance.progress import watched
from conformance.results.outcomes import FAILING, ORDER

_SAMPLES = 1000  # of the speed, as many as rich keeps: so its estimate is of the whole run, whose cases are not alike


class ProgressDisplay:
    """The display of a run of so many cases."""

    def __init__(self, cases: int, display: "_Display") -> None:
        """At its begin."""
        self._cases, self._display = cases, display
        self._task = display.add_task("", total=cases, what="", failed="")
        self._case, self._finished = "", 0
        self._failed: Counter[str] = Counter()

    @contextmanager
    def case(self, name: object) -> Iterator[None]:
        """A case runs, and what it reports is shown."""
        self._case = f"{self._finished + 1}/{self._cases} {name}"
        self._show("", 0.0)
        with nullcontext() if self._display.disable else watched(self._show):
            yield
        self._finished += 1
        self._show("", 0.0)

    def ended(self, outcome: str, seconds: float) -> None:
        """How a case ended, after how long."""
        if self._display.disable and sys.stderr:
            print(printable(f"{self._case}: {outcome}, {seconds:.1f} s"), file=sys.stderr, flush=True)
        self._failed[outcome] += outcome in FAILING
        failed = ", ".join(f"{n} {o}" for o in ORDER if (n := self._failed[o]))
        self._display.update(self._task, failed=failed)

    def _show(self, what: str, done: float) -> None:
        """It never goes back: a case that is looked at again, once it is judged, reports of fractions anew."""
        further = self._finished + min(done, 1.0) - self._display.tasks[0].completed
        advance = further if further >= self._cases / _SAMPLES else 0.0
        self._display.update(self._task, description=self._case, what=what, advance=advance)


class _Display(Progress):
    """The bar and the times; below them the case, and what it is doing."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            for text in (task.description, f"  {task.fields['what']}"):
                yield Text(printable(text), no_wrap=True, overflow="ellipsis")


@contextmanager
def progress(cases: int, console: Console | None = None) -> Iterator[ProgressDisplay]:
    """Shown while it is open, by default on standard error; where that is no terminal, a line for each case that ends."""
    given, console = console, console or Console(stderr=True)
    display = _Display(
        BarColumn(bar_width=None),
        TextColumn("{task.fields[failed]}", style="bold red", markup=False),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        expand=True,
        transient=True,
        # What a candidate prints goes above the bar, or where standard output goes if that is elsewhere.
        redirect_stdout=bool(sys.stdout and sys.stdout.isatty()),
        speed_estimate_period=float("inf"),
        # rich takes a pipe for a terminal where the environment asks for colours.
        disable=not console.is_interactive or not (given or bool(sys.stderr and sys.stderr.isatty())),
    )
    with display:
        yield ProgressDisplay(cases, display)
