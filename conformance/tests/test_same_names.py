"""Names that occur twice: an entry point of two distributions, and two candidates' files of the same name."""

from pathlib import Path

import pytest

from conformance import load_implementation
from conformance.candidates.entry_points import registered
from conformance.cli import main
from conformance.errors import PluginError
from conformance.results.file import read_results

GROUP = "bert_conformance.implementations"
WITHOUT = "def prepare(checkpoint, device, dtype): return lambda batch: {}\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two installed distributions that register the name `twice`."""
    for distribution, version in (("bert-one", "1.0"), ("bert-two", "2.1")):
        about = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (about / "entry_points.txt").write_text(f"[{GROUP}]\ntwice = {distribution.replace('-', '_')}:prepare\n")
        (tmp_path / f"{distribution.replace('-', '_')}.py").write_text(WITHOUT)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_name_that_two_distributions_register_is_an_error_that_names_both(site: Path) -> None:
    with pytest.raises(PluginError) as caught:
        load_implementation("twice")
    assert "registered by 2 installed distributions, bert-one 1.0 (bert_one:prepare) and bert-two 2.1" in str(caught.value)
    assert {(r.distribution, r.origin) for r in registered() if r.name == "twice"} == {
        ("bert-one", "bert_one:prepare"),
        ("bert-two", "bert_two:prepare"),
    }


@pytest.mark.parametrize("where", [["--in-process"], []], ids=["in this process", "in a worker"])
def test_other_candidates_are_judged_all_the_same(site: Path, where: list[str]) -> None:
    out = site / "out"
    assert main(["run", "-i", "twice", "-i", "making-bert", "--golden", "tiny", "--out", str(out), *where]) == 1
    outcomes = {c.implementation: (c.outcome, c.reason) for c in read_results(out / "results.jsonl").checks}
    assert outcomes["making-bert"] == ("pass", "")
    assert outcomes["twice"][0] == "error"
    assert "bert-one 1.0 (bert_one:prepare) and bert-two 2.1 (bert_two:prepare)" in outcomes["twice"][1]
