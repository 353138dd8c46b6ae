"""Progress reports: the display on a terminal, one line for each case in a pipe, and no cost without a listener."""

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from conformance.cli.progress_display import ProgressDisplay, progress
from conformance.progress import report_progress
from conformance.tests.commands import Command

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _terminal() -> Console:
    return Console(file=StringIO(), width=80, force_terminal=True, force_interactive=True, _environ={})


def _lines(display: ProgressDisplay) -> list[str]:
    """Return the lines that are displayed, without the time."""
    console = _terminal()
    console.print(display)
    assert isinstance(console.file, StringIO)
    return [re.sub(r"^\d+ s  ", "", _ESCAPE.sub("", line).rstrip()) for line in console.file.getvalue().splitlines()]


def test_the_display_has_the_case_the_activation_and_the_failures() -> None:
    with progress(3, _terminal()) as shown:
        for case, outcome in (("good on tiny", "pass"), ("bad on tiny", "fail")):
            with shown.case(case):
                pass
            shown.ended(outcome, 10.0)
        with shown.case("third on tiny, cpu, float32"):
            report_progress("encoder.layer.5.attention.self.probs", 0.5)
            assert _lines(shown) == ["3/3 third on tiny, cpu, float32  1 fail", "  encoder.layer.5.attention.self.probs, 50 %"]


def test_a_hostile_name_is_escaped_and_the_last_state_is_cleared(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = _terminal()
    with progress(1, terminal) as shown, shown.case("\x1b[31m[bold]x[/] on tiny"):
        report_progress("[/]\n\x07", 0.0)
        assert _lines(shown) == [r"1/1 \x1b[31m[bold]x[/] on tiny", r"  [/]\n\x07"]
    assert isinstance(terminal.file, StringIO)
    *_, end = terminal.file.getvalue().split("\x1b[2K")
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
