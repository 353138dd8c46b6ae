"""Standard output that lacks characters, has no width, or is closed early: reports are complete, and no result is lost."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.isolation.forwarded_output import output_to_standard_error
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


@pytest.mark.parametrize("how", ["pretty", "markdown"])
def test_characters_that_the_encoding_lacks_are_written_as_escapes(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", write_through=True))
    assert main(["run", "-i", "making-bert", "--golden", "tiny", "--format", how, "--out", str(tmp_path)]) == 0
    assert rb"\u03c3" in written.getvalue()
    assert "σ" in (tmp_path / "report.html").read_text("utf-8")


def test_a_reader_that_stops_early_does_not_cost_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end, pipe = os.pipe()
    os.close(end)
    monkeypatch.setattr(sys, "stdout", os.fdopen(pipe, "w"))
    main(["run", "-i", "making-bert", "--golden", "tiny", "--out", str(tmp_path)])
    assert (tmp_path / "report.html").stat().st_size


@pytest.mark.parametrize("columns", ["0", "", "wide"])
def test_a_width_that_is_none_is_that_of_a_pipe(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    main(["explain", "sigma"])
    in_a_pipe = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", columns)
    main(["explain", "sigma"])
    assert capsys.readouterr().out == in_a_pipe != ""


@pytest.mark.parametrize("how", ["json", "pretty"])
def test_output_of_a_candidate_in_process_goes_to_standard_error_and_the_report_alone_to_standard_output(
    how: str, tmp_path: Path
) -> None:
    (tmp_path / "printing.py").write_text(_PRINTING)
    run = ["run", "-i", "printing.py:candidate", "--golden", "tiny", "--depth", "screen", "--in-process", "--format", how]
    ended = run_python("-m", "conformance", *run, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert [words for words in _PRINTED if words in ended.stdout or words not in ended.stderr] == []
    if how == "json":
        assert [case["check"]["outcome"] for case in json.loads(ended.stdout)["cases"]] == ["pass"]


@pytest.mark.usefixtures("capfd")  # descriptors 1 and 2 are two files
def test_the_descriptor_of_standard_output_is_that_of_standard_error_inside_the_context_alone() -> None:
    inodes = {number: os.fstat(number).st_ino for number in (1, 2)}
    with output_to_standard_error():
        assert os.fstat(1).st_ino == inodes[2]
    assert os.fstat(1).st_ino == inodes[1] != inodes[2]
