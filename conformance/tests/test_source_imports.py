"""Whether a candidate needs transformers is read from its source."""

from pathlib import Path
from typing import Any

import pytest

from conformance.candidates.lookup import entry_points
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
    ("names", "may"),
    [
        # The module is imported, or one beside it that imports it.
        (["direct:x", "direct.py:x", "late.py:build", "beside.py:x", "package.adaptor:x", "package.models.bert:x"], True),
        (
            ["another.py:x", "itself:x", "of_suite.py:x", "package.plain:x", "package:x", "cmd:python direct.py", "model.onnx"],
            False,
        ),
        # A source that cannot be read may import anything.
        (["wrong.py:x", "above.py:x", "absent.py:x", "absent.module:x", ":x", "..:x", ".py:x"], True),
    ],
)
def test_whether_a_candidate_may_import_a_package_is_read_from_its_source(names: list[str], may: bool) -> None:
    assert {name: may_import(name, "transformers") for name in names} == dict.fromkeys(names, may)


def test_of_the_registered_implementations_those_that_use_the_reference_import_it() -> None:
    names = [name for name in entry_points() if may_import(name, "transformers")]
    assert {"hf-eager", "hf-onnx", "hf-cached"} <= set(names)
    assert not {"making-bert", "inner-workings", "demystified", "torch-encoder"} & set(names)


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [(["making-bert"], False), (["making-bert", "hf-eager"], True), ([], True)],
)
def test_the_fork_server_imports_transformers_only_for_candidates_that_may_need_it(
    arguments: list[str], imported: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(commands, "start_server", lambda *more, transformers: asked.append(transformers))
    monkeypatch.setattr("conformance.cli.run.run_all", lambda *given, **named: 0)
    found: Any = parsed(["run", *arguments, "-o", str(tmp_path / "out")])
    assert commands.run(found) == 0
    assert asked == [imported]
