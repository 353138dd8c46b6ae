"""Fixtures shared by several test files, and the marker `landing`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import main
from conformance.tests.commands import CRASHING, FAILING, Command, Ended


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `thorough` the instances of a parametrised test that its marker `landing` does not select."""
    selected: dict[str, bool] = {}
    for item in items:
        for marker in item.iter_markers("landing"):
            landing = _matches(item, marker.kwargs) or any(_matches(item, selection) for selection in marker.args)
            function = item.nodeid.partition("[")[0]
            selected[function] = selected.get(function, False) or landing
            if not landing:
                item.add_marker("thorough")
    if empty := [name for name, landing in selected.items() if not landing]:
        raise pytest.UsageError(f"the marker `landing` selects no instance of {', '.join(empty)}")


def _matches(item: pytest.Item, selection: Mapping[str, Any]) -> bool:
    """Return whether the parameters of a test are those of a selection: for each name, a value or a list of values."""
    parameters = item.callspec.params  # type: ignore[attr-defined]
    return bool(selection) and all(
        parameters[name] in (values if isinstance(values, list) else [values]) for name, values in selection.items()
    )


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread: the products are so small that more threads only wait for one another."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs a command of the command line in this process."""

    def ended(*arguments: object) -> Ended:
        capsys.readouterr()
        try:
            code: object = main([str(argument) for argument in arguments])
        except SystemExit as refused:
            code = refused.code
        return Ended(code, *capsys.readouterr())

    return ended


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results file of a run of three candidates on `tiny`: one fails, one passes and one crashes."""
    folder = tmp_path_factory.mktemp("results")
    assert main(["run", FAILING, "hf-eager", CRASHING, "--golden", "tiny", "-o", str(folder)]) == 1
    return folder / "results.jsonl"
