"""Standard output that lacks characters, has no width, or is closed early: reports are complete, and no result is lost."""

import io
import os
import sys
from pathlib import Path

import pytest

from conformance.cli import main


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
