"""Every format of output is printed and written by the command `report`, and every format of documents by `diff` and `trace`."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance.cli import main
from conformance.report.output_formats import DOCUMENT_FORMATS, REPORT_FORMATS

Captured = pytest.CaptureFixture[str]

COUNTS = "ran 1 of 1: 1 pass"
IS_REPORT: Mapping[str, Callable[[str], bool]] = {
    "html": lambda text: text.startswith("<!doctype html>") and COUNTS in text,
    "markdown": lambda text: text.startswith(f"**{COUNTS}**\n"),
    "json": lambda text: [case["check"]["outcome"] for case in json.loads(text)["cases"]] == ["pass"],
    "text": lambda text: text.startswith(f"{COUNTS}\n"),
    "junit": lambda text: ElementTree.fromstring(text)[0].attrib["tests"] == "1",
}
"""For each format, whether a text is the report on one run that passes."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("results")
    assert main(["run", "-i", "making-bert", "--golden", "tiny", "--out", str(folder)]) == 0
    return str(folder / "results.jsonl")


@pytest.mark.parametrize("name", REPORT_FORMATS)
def test_report_prints_every_format_and_writes_the_same_to_its_suffix(
    name: str, results: str, tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "folder" / f"out{REPORT_FORMATS[name].suffix}"
    assert main(["report", results, "--format", name]) == 0
    printed = capsys.readouterr().out
    assert main(["report", results, "-o", str(file)]) == 0
    assert not capsys.readouterr().out
    assert IS_REPORT[name](printed), printed[:200]
    assert file.read_text("utf-8") == printed


def test_the_suffixes_differ_and_the_help_lists_those_of_each_command(capsys: Captured) -> None:
    assert len({row.suffix for row in REPORT_FORMATS.values()}) == len(REPORT_FORMATS)
    for command, names in (("report", REPORT_FORMATS), ("diff", DOCUMENT_FORMATS), ("trace", DOCUMENT_FORMATS)):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert ", ".join(REPORT_FORMATS[name].suffix for name in names) in " ".join(capsys.readouterr().out.split())


def test_diff_and_trace_write_every_format_of_documents(results: str, tmp_path: Path, capsys: Captured) -> None:
    for command in (["diff", results, results], ["trace", "golden:tiny"]):
        files = [tmp_path / f"{command[0]}{REPORT_FORMATS[name].suffix}" for name in DOCUMENT_FORMATS]
        assert main([*command, *(part for file in files for part in ("-o", str(file)))]) == 0
        assert all(file.stat().st_size for file in files)
