"""Standard output that lacks characters, has no width, or is closed early: reports are complete, and no result is lost."""

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.tests.forked import run_python

# In each pass: Python's print and C's buffered output; at import, the file descriptor and a handler that keeps Python's stream.
_PRINTING = """
import ctypes, logging, os, sys
from conformance.tests.zoo import right
logging.getLogger("kept").addHandler(logging.StreamHandler(sys.__stdout__))
print("printed at import")
os.write(1, b"written by descriptor\\n")
def candidate(checkpoint, device, dtype):
    print("printed when prepared")
    def run(batch):
        print("printed in a pass")
        ctypes.CDLL(None).puts(b"written by C")
        logging.getLogger("kept").warning("written by a handler")
        return right(batch)
    return run
"""
_PRINTED = ("printed at import", "printed when prepared", "printed in a pass", "written by descriptor", "by C", "by a handler")


class _Failing(io.StringIO):
    """A file that cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def flush(self) -> None:
        raise self.error


FULL, CLOSED = OSError(errno.ENOSPC, "No space left on device"), BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize("how", ["pretty", "markdown"])
def test_characters_that_the_encoding_lacks_are_written_as_escapes(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", write_through=True))
    options = ["--golden", "tiny", "--depth", "screen", "--in-process", "--format", how, "-o", str(tmp_path)]
    assert main(["run", "making-bert", *options]) == 0
    assert rb"\u03c3" in written.getvalue()
    assert "σ" in (tmp_path / "report.html").read_text("utf-8")


def test_a_reader_that_stops_early_and_standard_error_that_cannot_be_written_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "making-bert", "--golden", "tiny", "--depth", "screen", "-o"]
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", _Failing(FULL))
        assert main([*command, str(tmp_path / "one")]) == 0
    assert "ran 1 of 1" in capsys.readouterr().out
    end, pipe = os.pipe()
    os.close(end)
    monkeypatch.setattr(sys, "stdout", os.fdopen(pipe, "w"))
    main([*command, str(tmp_path / "two")])
    assert (tmp_path / "two" / "report.html").stat().st_size


@pytest.mark.parametrize("how", ["json", "pretty"])
def test_output_of_a_candidate_in_process_goes_to_standard_error_and_the_report_alone_to_standard_output(
    how: str, tmp_path: Path
) -> None:
    (tmp_path / "printing.py").write_text(_PRINTING)
    run = ["run", "printing.py:candidate", "--golden", "tiny", "--depth", "screen", "--in-process", "--format", how]
    ended = run_python("-m", "conformance", *run, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert [words for words in _PRINTED if words in ended.stdout or words not in ended.stderr] == []
    if how == "json":
        assert [case["check"]["outcome"] for case in json.loads(ended.stdout)["cases"]] == ["pass"]


@pytest.mark.parametrize(("error", "code"), [(FULL, 3), (CLOSED, 0)])
@pytest.mark.parametrize("command", [["explain", "sigma"], ["explain", "sigma", "--format", "json"], ["list"]])
def test_a_full_device_is_said_and_a_closed_pipe_is_no_failure(
    error: OSError, code: int, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", _Failing(error))
    assert main(command) == code
    assert ("standard output cannot be written: No space left on device" in capsys.readouterr().err) == (code == 3)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_streams_that_are_closed_at_the_start_are_opened_so_that_no_other_file_gets_their_numbers(closed: str) -> None:
    code = "import os, sys; from conformance.cli import main; main(['list']); sys.exit(int(os.open('/', os.O_RDONLY) < 3))"
    assert subprocess.run(["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, code], check=False).returncode == 0


@pytest.mark.parametrize("how", ["pretty", "json", "markdown"])
def test_nothing_that_is_printed_has_control_characters_or_marks_of_direction(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\x1b[31mred\x9b\x7f\u202e\u2066\U000e0041 é σ"
    (tmp_path / "odd.py").write_text(
        f"import sys\ndef odd(checkpoint, device, dtype):\n    print({text!r}, file=sys.stderr)\n    raise ValueError({text!r})\n"
    )
    out = tmp_path / f"out{text}"
    command = ["run", f"{tmp_path}/odd.py:odd", "--golden", "tiny", "--in-process", "--format", how, "-o", str(out)]
    assert main(command) == 1
    printed = capsys.readouterr()
    assert {c for c in printed.out + printed.err if not c.isprintable()} <= {"\n"}
    if how == "json":
        assert f"ValueError: {text}" in json.loads(printed.out)["cases"][0]["check"]["reason"]
    if how == "pretty":
        assert "results: " in printed.out


_LOSING = """
import os, shutil
from conformance.tests.zoo import right
def candidate(checkpoint, device, dtype):
    def run(batch):
        {action}
        return right(batch)
    return run
"""


@pytest.mark.parametrize(
    ("action", "lost"),
    [
        ("shutil.rmtree({out!r}, ignore_errors=True)", "results.jsonl has been deleted or changed"),
        ("os.truncate({out!r} + '/results.jsonl', 0)", "results.jsonl has been deleted or changed"),
        ("open({out!r} + '/x', 'w').close(); os.replace({out!r} + '/x', {out!r} + '/results.jsonl')", "results.jsonl has been"),
        ("os.remove({out!r} + '/results.jsonl'); os.mkfifo({out!r} + '/results.jsonl')", "results.jsonl has been"),
        ("os.makedirs({out!r} + '/report.html', exist_ok=True)", "report.html cannot be written: Is a directory"),
        ("pass", ""),
    ],
)
def test_results_or_a_page_that_are_lost_are_said_and_the_report_is_printed(
    action: str, lost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "losing.py", tmp_path / "out"
    file.write_text(_LOSING.format(action=action.format(out=str(out))))
    run = ["run", f"{file}:candidate", "--golden", "tiny", "--depth", "screen", "--in-process", "-o", str(out)]
    assert main(run) == (3 if lost else 0)
    printed = capsys.readouterr()
    assert printed.out.startswith("ran 1 of 1: 1 pass")
    assert lost in printed.err
    if "results.jsonl" not in lost:
        assert main(["report", str(out / "results.jsonl")]) == 0
