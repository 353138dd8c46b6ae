"""The versions with which the suite is tested: recorded for the factors of tox.ini, listed in conformance/README.md, and stated in
pyproject.toml."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from conformance.benchmarks.versions import Run, factors, main, paragraph, record, recorded, run_of

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
HOLDING = [run for run in recorded().values() if run.holds]
JUNIT = '<testsuites><testsuite tests="9" failures="1" errors="2" skipped="1"/></testsuites>'


@pytest.fixture
def junit(tmp_path: Path) -> Path:
    path = tmp_path / "junit.xml"
    path.write_text(JUNIT, "utf-8")
    return path


def test_the_readme_has_the_last_run_of_every_factor() -> None:
    assert "\n".join(paragraph(recorded(), factors())) in (ROOT / "conformance" / "README.md").read_text("utf-8")


def test_every_recorded_factor_is_in_tox_ini() -> None:
    assert {"py311", "torch-oldest", "numpy1"} <= set(factors())
    assert recorded().keys() <= set(factors())


@pytest.mark.parametrize("name", ["torch", "transformers", "numpy", "scipy"])
def test_the_lower_bound_of_a_version_is_the_oldest_that_passes(name: str) -> None:
    required = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["reference"]]
    (specifiers,) = (r.specifier for r in map(Requirement, required) if r.name == name)
    oldest = min(Version(version) for run in HOLDING if (version := getattr(run, name)))
    assert _oldest(specifiers) == oldest.release[: len(_oldest(specifiers))]


def test_the_listed_python_versions_are_those_that_pass() -> None:
    minors = {Version(run.python).release[:2] for run in HOLDING}
    assert _oldest(SpecifierSet(PROJECT["requires-python"])) == min(minors)
    named = {c.removeprefix("Programming Language :: Python :: ") for c in PROJECT["classifiers"] if ":: 3." in c}
    assert named == {f"{major}.{minor}" for major, minor in minors}


def _oldest(specifiers: SpecifierSet) -> tuple[int, ...]:
    (specifier,) = specifiers
    assert specifier.operator == ">="
    return Version(specifier.version).release


def test_a_run_has_the_counts_of_its_junit_file_and_the_installed_versions(junit: Path) -> None:
    run = run_of(junit)
    assert (run.passed, run.failed, run.skipped) == (5, 3, 1)
    assert not run.holds
    assert Version(run.numpy) in SpecifierSet(">=1.26")


@pytest.mark.parametrize(("counts", "holds"), [((5, 0, 1), True), ((5, 1, 0), False), ((0, 0, 9), False)])
def test_a_run_in_which_nothing_passed_or_something_failed_does_not_count(counts: tuple[int, int, int], holds: bool) -> None:
    assert _run(*counts).holds is holds


def test_the_last_run_of_a_factor_replaces_its_earlier_one_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text("{}", "utf-8")
    old, new, other = _run(1, 0, 0), _run(2, 0, 0), _run(3, 0, 0)
    for name, run in (("a", old), ("b", other), ("a", new)):
        record(name, run, path)
    assert recorded(path) == {"a": new, "b": other}


def test_failures_and_factors_without_a_run_are_listed() -> None:
    lines = "\n".join(paragraph({"a": _run(7, 2, 1)}, ("a", "b")))
    assert "| `a` | 3.11.7 | 2.6.0 | 5.0.0 | 1.26.0 | 1.11.1 | 7 | 2 | 1 | 2026-01-01 |" in lines
    assert "- `b`: the factor has not been run." in lines
    assert "- `a`" not in lines


@pytest.mark.parametrize("content", [None, "no XML"])
def test_without_a_junit_file_nothing_is_recorded(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "junit.xml"
    if content:
        path.write_text(content, "utf-8")
    before = recorded()
    monkeypatch.setattr("sys.argv", ["versions", "--record", "py311", "--junit", str(path)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "run that first" in capsys.readouterr().err
    assert recorded() == before


def _run(passed: int, failed: int, skipped: int) -> Run:
    return Run("3.11.7", "2.6.0", "5.0.0", "1.26.0", "1.11.1", "Linux x86_64", "2026-01-01", passed, failed, skipped)
