"""Every format of output: of `run` and `report`, of `diff` and of `trace`; and the run as one JSON object."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import msgspec
import pytest

from conformance.report.document import as_json
from conformance.report.output_formats import DOCUMENT_FORMATS, REPORT_FORMATS
from conformance.report.run import document
from conformance.results.case import Case
from conformance.results.file import read_results
from conformance.results.merge import merged
from conformance.results.records import FaultRecord, json_schema
from conformance.tests.commands import FAILING, Command
from conformance.tests.sample_records import EMPTY, activation, checked, everything, run


def _strict(text: str) -> Any:
    """Parse strict JSON, in which NaN is refused."""

    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refused)


COUNTS = "ran 3 of 3: 1 crash, 1 fail, 1 pass"
IS_REPORT: Mapping[str, Callable[[str], bool]] = {
    "html": lambda text: text.startswith("<!doctype html>") and COUNTS in text,
    "markdown": lambda text: text.startswith(f"**{COUNTS}**\n"),
    "json": lambda text: [case["check"]["outcome"] for case in _strict(text)["cases"]] == ["fail", "pass", "crash"],
    "text": lambda text: text.startswith(f"{COUNTS}\n"),
    "junit": lambda text: ElementTree.fromstring(text)[0].attrib["tests"] == "3",
}
"""For each format, whether a text is the report of the run of three candidates."""


@pytest.mark.parametrize("name", REPORT_FORMATS)
def test_report_prints_every_format_and_writes_the_same_to_its_suffix(
    name: str, results: Path, tmp_path: Path, command: Command
) -> None:
    file = tmp_path / "folder" / f"out{REPORT_FORMATS[name].suffix}"
    printed = command("report", results, "--format", name)
    written = command("report", results, "-o", file)
    assert (printed.code, written.code, written.out) == (1, 1, "")
    assert IS_REPORT[name](printed.out), printed.out[:200]
    assert file.read_text("utf-8") == printed.out


def test_diff_and_trace_write_every_format_of_documents(results: Path, tmp_path: Path, command: Command) -> None:
    for name, *arguments in (("diff", results, results), ("diff", "hf-eager", "making-bert"), ("trace", "golden:tiny")):
        files = {form: tmp_path / f"out{REPORT_FORMATS[form].suffix}" for form in DOCUMENT_FORMATS}
        ended = command(name, *arguments, *(part for file in files.values() for part in ("-o", file)))
        assert (ended.code, ended.out) == (0, "")
        verdict = {results: "no verdict changed", "hf-eager": "no difference beyond rounding"}.get(arguments[0], "golden:tiny")
        assert [form for form, file in files.items() if form != "json" and verdict not in file.read_text("utf-8")] == []
        rows = _strict(files["json"].read_text("utf-8"))
        rows = rows["rows"] if isinstance(rows, dict) else rows
        assert bool(rows) == (name == "trace" or arguments[0] == "hf-eager")
        assert not any(row.get("begins") for row in rows)


def test_run_and_report_print_the_same_object(tmp_path: Path, command: Command) -> None:
    run = ("run", FAILING, "--golden", "tiny", "--in-process", "--format", "json", "-o", tmp_path)
    ran, reported = command(*run), command("report", tmp_path / "results.jsonl", "--format", "json")
    rendered = _strict(ran.out)
    assert (ran.code, reported.code) == (1, 1)
    assert rendered == _strict(reported.out) == _strict(as_json(document(read_results(tmp_path / "results.jsonl"))))
    assert (rendered["footer"]["exit_code"], rendered["headers"][0]["goldens"].keys()) == (1, {"tiny"})
    assert rendered["cases"][0]["mistakes"][0]["fault"]["name"] == "epsilon"


def test_the_object_has_headers_footer_notes_and_every_record_under_the_names_of_the_results_file() -> None:
    results = everything()
    rendered = _strict(as_json(document(results)))
    assert list(rendered) == ["headers", "footer", "notes", "cases"]
    assert len(rendered["headers"]) == 3
    footer = {"kind": "footer", "declared": 15, "ran": 15, "outcomes": None, "exit_code": 1}
    assert rendered["footer"] | {"outcomes": None} == footer
    grave = {"contradiction": True, "missing": True, "duplicate": False}
    assert {note["kind"]: note["grave"] for note in rendered["notes"]} == grave
    schema = json_schema()
    validator = jsonschema.validators.validator_for(schema)(schema)
    for case, of in zip(rendered["cases"], results.cases, strict=True):
        for record in (case["check"], *case["activations"]):
            validator.validate(record)
        assert (case["check"]["implementation"], len(case["activations"])) == (of.check.implementation, len(of.activations))
    assert {"global", "local"} <= rendered["cases"][0]["activations"][0].keys()


def test_a_mistake_has_its_sentence_and_evidence_and_an_unnamed_failure_its_description() -> None:
    cases = {case["check"]["implementation"]: case["mistakes"] for case in _strict(as_json(document(everything())))["cases"]}
    form, epsilon = cases["my_package.conformance:bad"]
    assert form["fault"]["name"] == "gelu-variant"
    assert epsilon["sentence"].endswith("epsilon is 1e-05, the checkpoint says 1e-12")
    assert epsilon["evidence"] == "epsilon: estimated epsilon = 1e-05 ± 1e-08, expected 1e-12"
    assert epsilon["cause"].startswith("usual cause: ")
    assert epsilon["steps"] == epsilon["activations"] == ["encoder.layer.0.attention.output.LayerNorm"]
    nameless = next(mistake for mistake in cases["odd"] if mistake["anatomy"])
    assert (nameless["fault"], nameless["anatomy"][0]) == (None, "wrong in head 2 alone, at every position")
    assert cases["hf-sdpa"] == []


def test_values_that_are_not_finite_are_null_and_an_empty_run_is_an_object_too() -> None:
    case = Case("mine", "tiny")
    fault = FaultRecord("epsilon", "pooler.dense", math.nan, math.inf, "epsilon", math.nan, math.inf, 1e-12)
    rendered = _strict(as_json(document(merged([run(checked(case, "fail", (activation(case, "pooler.dense", 9.0, (fault,)),)))]))))
    (mistake,) = rendered["cases"][0]["mistakes"]
    assert (mistake["fault"]["z"], mistake["fault"]["estimate"]) == (None, None)
    empty = {"headers": [], "footer": msgspec.to_builtins(EMPTY.footer), "notes": [], "cases": []}
    assert _strict(as_json(document(EMPTY))) == empty
