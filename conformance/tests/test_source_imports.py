"""Whether a candidate needs transformers is read from its source, so that a run of others does not import it."""

from pathlib import Path
from typing import Any

import pytest

from conformance.candidates.entry_points import entry_points
from conformance.candidates.source_imports import may_import
from conformance.cli import commands
from conformance.cli.arguments import parsed

SOURCES = {
    "direct.py": "from transformers.models.bert import modeling_bert",
    "late.py": "def build(a):\n    import os, transformers\n    return transformers",
    "beside.py": "from direct import modeling_bert",
    "another.py": "import transformers_of_films, torch\nfrom torch import transformers",
    "itself.py": "import itself, another",
    "wrong.py": "import transformers as",
    "above.py": "from ..models import bert",
    "of_suite.py": "import conformance",
    "conformance/__init__.py": "import transformers",
    "package/__init__.py": "",
    "package/adaptor.py": "from .models import bert",
    "package/plain.py": "from . import numbers\nfrom .models.numbers import one",
    "package/models/__init__.py": "",
    "package/models/bert.py": "from ... import package\nimport transformers",
    "package/models/numbers.py": "one = 1",
}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source, "utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    "name", ["direct:x", "direct.py:x", "late.py:build", "beside.py:x", "package.adaptor:x", "package.models.bert:x"]
)
def test_an_import_of_the_module_or_of_one_beside_it_is_found(name: str) -> None:
    assert may_import(name, "transformers")


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    "name", ["another.py:x", "itself:x", "of_suite.py:x", "package.plain:x", "package:x", "cmd:python direct.py", "model.onnx"]
)
def test_other_candidates_do_not_import_it(name: str) -> None:
    assert not may_import(name, "transformers")


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("name", ["wrong.py:x", "above.py:x", "absent.py:x", "absent.module:x", ":x", "..:x", ".py:x"])
def test_a_source_that_cannot_be_read_may_import_anything(name: str) -> None:
    assert may_import(name, "transformers")


def test_of_the_registered_implementations_those_that_use_the_reference_import_it() -> None:
    names = [name for name in entry_points() if may_import(name, "transformers")]
    assert {"hf-eager", "hf-onnx", "hf-cached"} <= set(names)
    assert not {"making-bert", "inner-workings", "demystified", "torch-encoder"} & set(names)


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [(["-i", "making-bert"], False), (["-i", "making-bert", "-i", "hf-eager"], True), ([], True)],
)
def test_the_fork_server_imports_transformers_only_for_candidates_that_may_need_it(
    arguments: list[str], imported: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(commands, "started_context", lambda *more, transformers: asked.append(transformers))
    monkeypatch.setattr("conformance.cli.run.run_all", lambda *given, **named: 0)
    found: Any = parsed(["run", *arguments, "--out", str(tmp_path / "out")])
    assert commands.run(found) == 0
    assert asked == [imported]
