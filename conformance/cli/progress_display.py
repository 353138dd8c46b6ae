"""Progress display: on a terminal, the running case, its activity, failures so far and remaining time; else each finished case."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from conformance.cli.streams import printable_streams, unescaped
from conformance.names import printable
from conformance.progress import watched
from conformance.results.outcomes import FAILING, ORDER

_SAMPLES = 1000  # speed samples, as many as rich keeps, so that its estimate covers the whole run, whose cases differ in duration


class ProgressDisplay:
    """The progress display of a run with a given number of cases."""

    def __init__(self, cases: int, display: "_Display") -> None:
        """Add the bar of the run to a display."""
        self._cases, self._display = cases, display
        self._task = display.add_task("", total=cases, what="", failed="")
        self._case, self._finished = "", 0
        self._failed: Counter[str] = Counter()

    @contextmanager
    def case(self, name: object) -> Iterator[None]:
        """Show a running case, and the progress that is reported inside the context."""
        self._case = f"{self._finished + 1}/{self._cases} {name}"
        self._show("", 0.0)
        with nullcontext() if self._display.disable else watched(self._show):
            yield
        self._finished += 1
        self._show("", 0.0)

    def ended(self, outcome: str, seconds: float) -> None:
        """Show the outcome and the duration of the current case."""
        if self._display.disable:
            print(printable(f"{self._case}: {outcome}, {seconds:.1f} s"), file=sys.stderr, flush=True)
        self._failed[outcome] += outcome in FAILING
        failed = ", ".join(f"{n} {o}" for o in ORDER if (n := self._failed[o]))
        self._display.update(self._task, failed=failed)

    def _show(self, what: str, done: float) -> None:
        """Update the display; the bar never moves back, although a case that is examined again reports fractions from 0."""
        further = self._finished + min(done, 1.0) - self._display.tasks[0].completed
        advance = further if further >= self._cases / _SAMPLES else 0.0
        self._display.update(self._task, description=self._case, what=what, advance=advance)


class _Display(Progress):
    """A display of the bar and the times, and below them the case and its current activity."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            for text in (task.description, f"  {task.fields['what']}"):
                yield Text(printable(text), no_wrap=True, overflow="ellipsis")


@contextmanager
def progress(cases: int, console: Console | None = None) -> Iterator[ProgressDisplay]:
    """Open a progress display, by default on standard error; if that is not a terminal, print a line for each finished case."""
    given, console = console, console or Console(file=unescaped(sys.stderr))
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
        # A candidate's prints go above the bar, or to standard output if that is not a terminal.
        redirect_stdout=sys.stdout.isatty(),
        speed_estimate_period=float("inf"),
        # rich treats a pipe as a terminal if the environment requests colours.
        disable=not console.is_interactive or not (given or sys.stderr.isatty()),
    )
    with display, printable_streams():  # the display replaces the streams
        yield ProgressDisplay(cases, display)
