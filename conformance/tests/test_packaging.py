"""The wheel outside of the checkout, and a user's package found by its entry point."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from conformance.checks.catalogue import CHECKS

ROOT = Path(__file__).parents[2]
EXAMPLE = Path(__file__).parent / "example_package"
PIP = ("-m", "pip", "--disable-pip-version-check", "-q")
BUILD = ("-m", "hatchling", "build", "-t")


def _python(*arguments: str, folder: Path, path: tuple[Path, ...] = ()) -> str:
    """Run Python in `folder` with `path` first on its path; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with exactly what both packages say that they are built with, installed once for all builds."""
    systems = [tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["build-system"] for root in (ROOT, EXAMPLE)]
    assert {system["build-backend"] for system in systems} == {"hatchling.build"}
    folder = tmp_path_factory.mktemp("tools")
    needed = {requirement for system in systems for requirement in system["requires"]}
    _python(*PIP, "install", "--target", str(folder), *needed, folder=folder)
    return folder


@pytest.fixture(scope="module")
def built(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with our wheel and the example package's, installed into `site`."""
    folder = tmp_path_factory.mktemp("built")
    example = folder / "example"
    shutil.copytree(EXAMPLE, example, ignore=shutil.ignore_patterns("__pycache__"))
    for source in (ROOT, example):
        _python(*BUILD, "wheel", "-d", str(folder / "wheels"), folder=source, path=(tools,))
    wheels = [str(w) for w in (folder / "wheels").glob("*.whl")]
    assert len(wheels) == 2
    _python(*PIP, "install", "--no-deps", "--target", str(folder / "site"), *wheels, folder=folder)
    return folder


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return tmp_path


def test_the_wheel_carries_the_fixtures_and_verifies_them_from_an_empty_folder(built: Path, empty: Path) -> None:
    site = built / "site"
    where = _python("-c", "import conformance; print(conformance.__file__)", folder=empty, path=(site,))
    assert where.startswith(str(site))
    assert not (site / "fixtures").exists()
    rendered = json.loads(_python("-m", "conformance", "golden", "verify", "--format", "json", folder=empty, path=(site,)))
    assert {part["golden"] for part in rendered} >= {"tiny", "edges", "deep", "wide", "sinusoidal"}
    assert {part["outcome"] for part in rendered} <= {"pass", "skip"}


def test_the_wheel_holds_what_a_user_runs_and_every_file_beside_the_code(built: Path) -> None:
    (wheel,) = (built / "wheels").glob("bert_conformance-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    assert {name.partition("/")[0] for name in names} == {"conformance", "bert_conformance-0.1.0.dist-info"}
    assert not [name for name in names if name.startswith(("conformance/tests/", "conformance/benchmarks/"))]
    assert wheel.stat().st_size <= 5_000_000
    for folder in ("conformance/cli", "conformance/isolation"):
        beside = {f"{folder}/{file.name}" for file in (ROOT / folder).iterdir() if file.suffix in (".txt", ".md", ".mjs")}
        assert beside
        assert beside <= names


OTHER = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "other"
version = "1"
[tool.hatch.build.targets.wheel]
packages = ["implementations"]
"""


def test_another_distribution_with_a_package_named_implementations_does_no_harm(built: Path, tools: Path, tmp_path: Path) -> None:
    other, site = tmp_path / "other", built / "site"
    (other / "implementations").mkdir(parents=True)
    (other / "pyproject.toml").write_text(OTHER)
    for name in ("__init__", "making_bert"):
        (other / "implementations" / f"{name}.py").write_text("raise ImportError('of another distribution')")
    _python(*BUILD, "wheel", "-d", str(tmp_path), folder=other, path=(tools,))
    _python(*PIP, "install", "--no-deps", "--target", str(site), *map(str, tmp_path.glob("*.whl")), folder=tmp_path)
    ours = ("-c", "from conformance.implementations.making_bert import making_bert; print(making_bert.name)")
    assert _python(*ours, folder=tmp_path, path=(site,)) == "making-bert\n"
    for line in (site / "other-1.dist-info" / "RECORD").read_text().splitlines():  # what pip removes with the distribution
        (site / line.partition(",")[0]).unlink()
    assert not list((site / "implementations").glob("*.py"))
    assert _python(*ours, folder=tmp_path, path=(site,)) == "making-bert\n"


def test_the_example_package_is_found_by_its_entry_point_and_judged(built: Path, empty: Path) -> None:
    site = built / "site"
    rows = json.loads(_python("-m", "conformance", "list", "--format", "json", folder=empty, path=(site,)))
    (row,) = [r for r in rows if r["name"] == "example-bert"]
    assert row["from"] == "example-bert 1.2.3"
    arguments = ("run", "example-bert", "making-bert", "--golden", "tiny", "--format", "json")
    cases = json.loads(_python("-m", "conformance", *arguments, folder=empty, path=(site,)))["cases"]
    outcomes = {case["check"]["implementation"]: case["check"]["outcome"] for case in cases}
    assert outcomes == {"example-bert": "pass", "making-bert": "pass"}
    assert (empty / "conformance-results" / "results.jsonl").is_file()


def test_the_shipped_suite_runs_from_the_wheel(built: Path, empty: Path) -> None:
    options = (
        "--bert-implementation",
        "example-bert",
        "--bert-golden",
        "tiny",
        "--bert-examples",
        "2",
        "-q",
        "-p",
        "no:cacheprovider",
    )
    rendered = _python("-m", "pytest", "--pyargs", "conformance.suite", *options, folder=empty, path=(built / "site",))
    # `batching-bitwise` is reported for all: whether it is a pass or a skip depends on the machine's kernels.
    assert any(f"{passed} passed, {len(CHECKS) - passed} skipped" in rendered for passed in (23, 24)), rendered


def test_the_source_distribution_contains_what_the_wheel_is_built_from(tools: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".tox", ".venv", "__pycache__", ".*_cache"))
    _python(*BUILD, "sdist", "-d", str(tmp_path / "dist"), folder=copy, path=(tools,))
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "fixtures/manifest.json", "fixtures/tiny.safetensors"} <= names
    assert {"conformance/cli/__init__.py", "conformance/implementations/making_bert.py"} <= names
