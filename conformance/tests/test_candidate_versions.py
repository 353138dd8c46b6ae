"""The version of the judged candidate: in the header, on the page, and in comparisons of two runs."""

from importlib import metadata
from pathlib import Path

import msgspec

from conformance.cli import main
from conformance.report.changes import changes
from conformance.results.case import Case
from conformance.results.file import read_results
from conformance.results.merge import merged
from conformance.results.records import ImplementationRecord, Results
from conformance.tests.sample_records import checked, run
from conformance.tests.test_diff_report_trace_replay import BAD

OLD = ImplementationRecord("my-package", "1.0", "my_package.conformance:bert")
NEW = msgspec.structs.replace(OLD, version="1.1")
VERSIONS = tuple(f"my-package {version}, {OLD.origin}" for version in ("1.0", "1.1"))


def _results(*names: str, **fields: object) -> Results:
    return merged([run(*(checked(Case(name, "tiny")) for name in names), **fields)])


def test_a_header_has_the_versions_of_registered_candidates_and_of_the_libraries(tmp_path: Path) -> None:
    assert main(["run", "hf-eager", BAD, "--golden", "tiny", "--depth", "screen", "--in-process", "-o", str(tmp_path)]) == 1
    (found,) = read_results(tmp_path / "results.jsonl").headers
    ours = ("bert-conformance", metadata.version("bert-conformance"))
    assert found.implementations["hf-eager"] == ImplementationRecord(*ours, "conformance.implementations.hugging_face:hf_eager")
    assert BAD not in found.implementations  # An object without a known version.
    assert found.numpy == metadata.version("numpy")
    assert found.onnxruntime is None or found.onnxruntime == metadata.version("onnxruntime")


def test_another_version_of_a_candidate_may_explain_a_change() -> None:
    def differing(before: Results, after: Results) -> object:
        return changes(before, after).environment

    old, new = ({"mine": record, "other": record, "idle": record} for record in (OLD, NEW))
    before, after = _results("mine", "other", implementations=old), _results("mine", "other", implementations=new)
    assert differing(before, after) == tuple((name, *VERSIONS) for name in ("mine", "other"))
    assert not differing(before, before)
    assert not differing(_results("mine", "other"), after)  # A file of an earlier version of the suite does not record it.
    moved = {"mine": msgspec.structs.replace(OLD, origin="elsewhere:bert")}
    found = differing(_results("mine", implementations=old), _results("mine", implementations=moved))
    assert found == (("mine", VERSIONS[0], "my-package 1.0, elsewhere:bert"),)
    renamed = differing(_results("mine", implementations=old), _results("yours", implementations={"yours": NEW}))
    assert renamed == (("yours", *VERSIONS),)
