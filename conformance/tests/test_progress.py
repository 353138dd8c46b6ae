"""Progress reports: the display on a terminal, one line for each case in a pipe, and no cost without a listener."""

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from conformance.cli.progress_display import progress
from conformance.progress import report_progress
from conformance.tests.commands import Command

_ERASED = re.compile(r"\x1b\[2K")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal of 80 columns with a clock set by the test."""

    def __init__(self) -> None:
        self.file, self.seconds = StringIO(), 0.0
        self.console = Console(
            file=self.file, width=80, force_terminal=True, force_interactive=True, _environ={}, get_time=lambda: self.seconds
        )

    def lines(self) -> list[str]:
        """Return the lines last shown."""
        *_, last = (found for part in _ERASED.split(self.file.getvalue()) if (found := _ESCAPE.sub("", part)).strip())
        return [line.rstrip() for line in last.replace("\r", "").split("\n") if line.strip()]


def test_the_display_has_the_case_the_activation_the_failures_and_the_remaining_time() -> None:
    terminal = Terminal()
    with progress(4, terminal.console) as shown:
        for case, outcome in (("good on tiny", "pass"), ("bad on tiny", "fail")):
            with shown.case(case):
                terminal.seconds += 10.0
            shown.ended(outcome, 10.0)
        with shown.case("third on tiny, cpu, float32"):
            terminal.seconds += 5.0
            report_progress("encoder.layer.5.attention.self.probs", 0.5)
            shown._display.refresh()
            bar, case, what = terminal.lines()
    assert case == "3/4 third on tiny, cpu, float32"
    assert what == "  encoder.layer.5.attention.self.probs"
    assert re.search("━ +1 fail 0:00:25 elapsed, 0:00:15 left$", bar)


def test_a_hostile_name_is_escaped_and_the_last_state_is_cleared(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    with progress(1, terminal.console) as shown, shown.case("\x1b[31m[bold]x[/] on tiny"):
        report_progress("[/]\n\x07", 0.1)
        shown._display.refresh()
        _, case, what = terminal.lines()
    assert (case, what) == (r"1/1 \x1b[31m[bold]x[/] on tiny", r"  [/]\n\x07")
    *_, end = _ERASED.split(terminal.file.getvalue())
    assert not _ESCAPE.sub("", end).strip()
    with progress(1) as shown:  # in a pipe
        with shown.case("\x1b[31mx\n on tiny"):
            pass
        shown.ended("pass", 1.0)
    assert capsys.readouterr().err == "1/1 \\x1b[31mx\\n on tiny: pass, 1.0 s\n"


def test_in_a_pipe_each_case_is_a_line_on_standard_error_when_it_ends(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    names = ("making-bert", "demystified-as-written")
    ended = command("run", *names, "--golden", "tiny", "--depth", "screen", "--format", "json", "-o", tmp_path)
    assert ended.code == 0
    first, second = ended.err.splitlines()
    assert re.fullmatch(r"1/2 making-bert on tiny, cpu, float32: pass, \d+\.\d s", first)
    assert re.fullmatch(r"2/2 demystified-as-written on tiny, cpu, float32: skip, \d+\.\d s", second)
    assert {case["check"]["implementation"] for case in json.loads(ended.out)["cases"]} == {"making-bert", "demystified-as-written"}
