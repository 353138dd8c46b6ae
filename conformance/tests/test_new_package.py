"""The command `new`: names of packages, and what a package's CI job reports."""

import os
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.tests.forked import run_python

STRANGER = "conformance.tests.third_party_models.packed:PackedBert"


@pytest.mark.parametrize(
    ("name", "mapped", "words"),
    [
        ("class", [], "'class' is not a valid package name"),
        ("3-berts", [], "'3-berts' is not a valid package name"),
        ("torch", [], "the package would hide torch, which it imports"),
        ("Conformance", ["--map", STRANGER], "such as Conformance-conformance"),
        ("my-berts", ["--map", "my_berts.model:Bert"], "the package would hide my_berts, which it imports"),
    ],
)
def test_a_package_that_could_not_be_imported_or_would_hide_what_it_imports_is_refused(
    name: str, mapped: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", str(tmp_path / name), *mapped]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / name).exists()


def test_the_current_folder_has_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my-bert").mkdir()
    monkeypatch.chdir(tmp_path / "my-bert")
    assert main(["new", "."]) == 0
    assert str(Path("src", "my_bert", "conformance.py")) in capsys.readouterr().out.split()  # a table of one column is printed
    assert (tmp_path / "my-bert" / "src" / "my_bert" / "conformance.py").is_file()


def test_no_command_of_the_ci_job_is_in_a_pipe_which_would_hide_its_exit_code(tmp_path: Path) -> None:
    """GitHub's default shell is `bash -e`, without `pipefail`."""
    assert main(["new", str(tmp_path / "my-bert")]) == 0
    job = (tmp_path / "my-bert" / ".github" / "workflows" / "conformance.yml").read_text("utf-8")
    commands = [line.partition("run:")[2] for line in job.splitlines() if "run:" in line]
    assert any("bert-conformance run my-bert" in command for command in commands)
    assert not any("|" in command for command in commands)


def test_new_packages_pass_their_own_tests(tmp_path: Path) -> None:
    model = tmp_path / "zebra.py"  # a file is copied, since the package could not import it
    model.write_text("from conformance.tests.third_party_models.packed import PackedBert\n\n\nclass Zebra(PackedBert):\n    pass\n")
    packages = {
        "my-bert": [],
        "their-bert": ["--map", STRANGER],
        "zebra-bert": ["--map", f"{model}:Zebra"],
    }
    for name, mapped in packages.items():
        assert main(["new", str(tmp_path / name), *mapped]) == 0
        assert main(["new", str(tmp_path / name), *mapped]) == 2  # Nothing is overwritten.
    paths = [*(str(tmp_path / name / "src") for name in packages), str(Path(__file__).parents[2])]
    options = ["-q", "-p", "no:cacheprovider", "--import-mode", "importlib", "-k", "values and (tiny or tanh or position-offset)"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    tests = [str(tmp_path / name / "tests") for name in packages]
    done = run_python("-m", "pytest", *options, *tests, folder=tmp_path, environment=environment)
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"{len(packages)} passed, {2 * len(packages)} skipped" in done.stdout  # their activation and positions are fixed
