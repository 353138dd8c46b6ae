"""A golden's network, exported to ONNX and run by Node's onnxruntime, conforms: a real program in another language.

`tox -e node` installs what it needs."""

import json
import os
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from conformance import check, isolation, load_golden
from conformance.implementations import exports
from conformance.implementations.making_bert import making_bert

VARIABLE = "BERT_CONFORMANCE_NODE_MODULES"
MODULES = Path(os.environ.get(VARIABLE, "node_modules")).resolve()
PROGRAM = Path(__file__).parent / "programs" / "onnx_bert.mjs"

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no program `node` here"),
    pytest.mark.skipif(
        not (MODULES / "onnxruntime-node").is_dir(), reason=f"no onnxruntime-node in {VARIABLE}; `tox -e node` installs it"
    ),
    pytest.mark.skipif(find_spec("onnxscript") is None, reason="pip install 'bert-conformance[onnx]'"),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, the client, the network of `tiny` with its activations as outputs, and their names."""
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(PROGRAM, folder)
    shutil.copy(Path(isolation.__file__).parent / "client.mjs", folder)
    checkpoint = load_golden("tiny").checkpoint
    module, inputs = making_bert.shown(checkpoint).eval(), exports.example(checkpoint.architecture)
    exports.onnx(module, inputs, folder / "model.onnx")
    (folder / "names.json").write_text(json.dumps(list(module(*inputs))))
    return folder


def candidate(folder: Path, names: str = "names.json") -> str:
    return f"cmd:{shlex.join(map(str, ('node', folder / PROGRAM.name, MODULES, folder / 'model.onnx', folder / names)))}"


def test_its_inner_activations_conform(exported: Path) -> None:
    result = check(candidate(exported), "tiny")
    assert result.conforms, result.reason
    assert {v.activation for v in result.verdicts if v.outcome == "pass"} == set(json.loads((exported / "names.json").read_text()))


def test_it_runs_batches_of_other_sizes_in_the_same_process(exported: Path) -> None:
    assert check(candidate(exported), "tiny", check="generated-batches").outcome == "pass"


def test_two_exchanged_activations_are_found(exported: Path) -> None:
    names = json.loads((exported / "names.json").read_text())
    query, key = (names.index(f"encoder.layer.1.attention.self.{name}") for name in ("query", "key"))
    names[query], names[key] = names[key], names[query]
    (exported / "exchanged.json").write_text(json.dumps(names))
    result = check(candidate(exported, "exchanged.json"), "tiny")
    assert {v.activation for v in result.verdicts if v.outcome == "fail"} >= {names[query], names[key]}
