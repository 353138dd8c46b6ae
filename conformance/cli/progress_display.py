"""Progress: on a terminal the running case, its activity and the failures so far; else a line for each finished case."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import monotonic

from rich.console import Console
from rich.live import Live
from rich.text import Text

from conformance.cli.streams import printable_streams, unescaped
from conformance.names import printable
from conformance.progress import watched
from conformance.results.outcomes import FAILING, ORDER


class ProgressDisplay:
    """The progress of a run with a given number of cases, which `rich` displays if it is live."""

    def __init__(self, cases: int, *, is_live: bool) -> None:
        """Begin with no case."""
        self._cases, self._is_live = cases, is_live
        self._case, self._activity, self._finished, self._start = "", "", 0, monotonic()
        self._failed: Counter[str] = Counter()

    @contextmanager
    def case(self, name: object) -> Iterator[None]:
        """Display a running case, and the progress that is reported inside the context."""
        self._case, self._activity = f"{self._finished + 1}/{self._cases} {name}", ""
        with watched(self._report) if self._is_live else nullcontext():
            yield
        self._finished += 1

    def ended(self, outcome: str, seconds: float) -> None:
        """Print the outcome and the duration of the current case, or count it."""
        if not self._is_live:
            print(printable(f"{self._case}: {outcome}, {seconds:.1f} s"), file=sys.stderr, flush=True)
        self._failed[outcome] += outcome in FAILING

    def _report(self, activity: str, share: float) -> None:
        self._activity = f"{activity}, {100.0 * share:.0f} %" if share else activity

    def __rich__(self) -> Text:
        """Return what is displayed: the case with the time since the beginning and the failures, and the activity."""
        failed = ", ".join(f"{n} {outcome}" for outcome in ORDER if (n := self._failed[outcome]))
        text = Text(f"{monotonic() - self._start:.0f} s  {printable(self._case)}", no_wrap=True, overflow="ellipsis")
        return text.append(f"  {failed}" if failed else "", "bold red").append(f"\n  {printable(self._activity)}")


@contextmanager
def progress(cases: int, console: Console | None = None) -> Iterator[ProgressDisplay]:
    """Open a progress display, by default on standard error; if that is not a terminal, print a line for each finished case."""
    # rich treats a pipe as a terminal if the environment requests colours
    is_live = console.is_interactive if console else sys.stderr.isatty() and Console(file=sys.stderr).is_interactive
    display = ProgressDisplay(cases, is_live=is_live)
    if not is_live:
        yield display
        return
    console = console or Console(file=unescaped(sys.stderr))
    # A candidate's prints go above the display, or to standard output if that is not a terminal.
    with Live(display, console=console, transient=True, redirect_stdout=sys.stdout.isatty()), printable_streams():
        yield display
