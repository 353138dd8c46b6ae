"""Names that occur twice: an entry point of two distributions, and two candidates' files of the same name."""

import inspect
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import conformance
from conformance import load_implementation
from conformance.candidates.lookup import registered, resolved
from conformance.cli import main
from conformance.errors import PluginError
from conformance.results.file import read_results


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two installed distributions that register the name `twice`."""
    for name, version in (("one", "1.0"), ("two", "2.1")):
        about = tmp_path / f"bert_{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: bert-{name}\nVersion: {version}\n")
        (about / "entry_points.txt").write_text(f"[bert_conformance.implementations]\ntwice = bert_{name}:prepare\n")
        (tmp_path / f"bert_{name}.py").write_text("def prepare(checkpoint, device, dtype): return lambda batch: {}\n")
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
    assert main(["run", "twice", "making-bert", "--golden", "tiny", "-o", str(out), *where]) == 1
    outcomes = {c.implementation: (c.outcome, c.reason) for c in read_results(out / "results.jsonl").checks}
    assert outcomes["making-bert"] == ("pass", "")
    assert outcomes["twice"][0] == "error"
    assert "bert-one 1.0 (bert_one:prepare) and bert-two 2.1 (bert_two:prepare)" in outcomes["twice"][1]


CANDIDATE = """
from dataclasses import dataclass
from beside import NUMBER

@dataclass
class Candidate:
    number: "int" = NUMBER

    def prepare(self, checkpoint, device, dtype):
        return lambda batch: {}

mine = Candidate()
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Return two files of the same name, each with a module of the same name beside it that it imports."""
    monkeypatch.chdir(tmp_path)
    before = dict(sys.modules)
    files = [Path(folder) / "mine.py" for folder in ("a", "b")]
    for number, file in enumerate(files):
        file.parent.mkdir()
        file.write_text(CANDIDATE)
        (file.parent / "beside.py").write_text(f"NUMBER = {number}\n")
    yield files
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


def test_two_files_of_one_name_are_two_modules_with_the_modules_beside_them(folders: list[Path]) -> None:
    first, second = (resolved(f"{file}:mine") for file in folders)
    assert (first.number, second.number) == (0, 1)
    assert resolved(f"{folders[0]}:mine") is first
    assert resolved(f"{folders[1]}:mine") is second
    assert type(second) is not type(first)
    assert pickle.loads(pickle.dumps(second)).number == 1
    assert "b" in inspect.getfile(type(second))


def test_a_file_with_the_name_of_an_imported_module_is_imported(folders: list[Path]) -> None:
    file = folders[0].with_name("json.py")
    file.write_text(CANDIDATE)
    assert resolved(f"{file}:mine").number == 0
    assert hasattr(sys.modules["json"], "dumps")


def test_a_file_that_raises_leaves_no_module(folders: list[Path]) -> None:
    resolved(f"{folders[0]}:mine")
    folders[1].write_text("raise ValueError(1)\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="1"):
            resolved(f"{folders[1]}:mine")


def test_a_conformance_of_another_distribution_in_place_of_ours_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(conformance, "__all__")
    monkeypatch.setattr("conformance.cli.packages_distributions", lambda: {"conformance": ["oidc-conformance", "bert-conformance"]})
    assert main(["list"]) == 2
    assert "oidc-conformance has a package of that name too, which has replaced it" in capsys.readouterr().err
