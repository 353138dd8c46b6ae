"""A run as one JSON object: `--format json` of `run`, `report` and `replay`."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from conformance.cli import main
from conformance.report.structured import structured
from conformance.results.case import Case
from conformance.results.file import read_results
from conformance.results.merge import merged
from conformance.results.records import FaultRecord, json_schema
from conformance.tests.sample_records import EMPTY, activation, checked, everything, run
from conformance.tests.test_diff_report_trace_replay import BAD


def _strict(text: str) -> Any:
    """Parse strict JSON, in which NaN is refused."""

    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refused)


def test_the_object_has_headers_footer_notes_and_every_record_under_the_names_of_the_results_file() -> None:
    results = everything()
    rendered = _strict(structured(results))
    assert list(rendered) == ["headers", "footer", "notes", "cases"]
    assert [h["shard"] for h in rendered["headers"]] == ["1/3", "2/3", "1/1"]
    assert rendered["footer"] | {"outcomes": None} == {
        "kind": "footer",
        "declared": 15,
        "ran": 15,
        "outcomes": None,
        "exit_code": 1,
    }
    assert {note["kind"]: note["grave"] for note in rendered["notes"]} == {
        "contradiction": True,
        "missing": True,
        "duplicate": False,
    }
    schema = json_schema()
    for case, of in zip(rendered["cases"], results.cases, strict=True):
        for record in (case["check"], *case["activations"]):
            jsonschema.validate(record, schema)
        assert (case["check"]["implementation"], len(case["activations"])) == (of.check.implementation, len(of.activations))
    assert {"global", "local"} <= rendered["cases"][0]["activations"][0].keys()


def test_a_mistake_has_its_sentence_and_evidence_and_an_unnamed_failure_its_description() -> None:
    rendered = _strict(structured(everything()))
    bad, odd = (next(c for c in rendered["cases"] if c["check"]["implementation"].endswith(name)) for name in ("bad", "odd"))
    form, epsilon = bad["mistakes"]
    assert form["fault"]["name"] == "gelu-variant"
    assert epsilon["sentence"].endswith("epsilon is 1e-05, the checkpoint says 1e-12")
    assert epsilon["evidence"] == "epsilon: estimated epsilon = 1e-05 ± 1e-08, expected 1e-12"
    assert epsilon["cause"].startswith("usual cause: ")
    assert epsilon["steps"] == epsilon["activations"] == ["encoder.layer.0.attention.output.LayerNorm"]
    nameless = next(m for m in odd["mistakes"] if m["anatomy"])
    assert nameless["fault"] is None
    assert nameless["anatomy"][0] == "wrong in head 2 alone, at every position"
    assert all(not case["mistakes"] for case in rendered["cases"] if case["check"]["outcome"] == "pass")


def test_values_that_are_not_finite_are_null_and_an_empty_run_is_an_object_too() -> None:
    case = Case("mine", "tiny")
    fault = FaultRecord("epsilon", "pooler.dense", math.nan, math.inf, "epsilon", math.nan, math.inf, 1e-12)
    rendered = _strict(structured(merged([run(checked(case, "fail", (activation(case, "pooler.dense", 9.0, (fault,)),)))])))
    (mistake,) = rendered["cases"][0]["mistakes"]
    assert (mistake["fault"]["z"], mistake["fault"]["estimate"]) == (None, None)
    assert _strict(structured(EMPTY)) == {"headers": [], "footer": msgspec.to_builtins(EMPTY.footer), "notes": [], "cases": []}


def test_run_and_report_print_the_same_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-i", BAD, "--golden", "tiny", "--format", "json", "--out", str(tmp_path)]) == 1
    rendered = _strict(capsys.readouterr().out)
    file = tmp_path / "results.jsonl"
    assert main(["report", str(file), "--format", "json"]) == 1
    assert _strict(capsys.readouterr().out) == rendered == _strict(structured(read_results(file)))
    assert rendered["footer"]["exit_code"] == 1
    assert rendered["headers"][0]["goldens"].keys() == {"tiny"}
    assert rendered["cases"][0]["mistakes"][0]["fault"]["name"] == "epsilon"
