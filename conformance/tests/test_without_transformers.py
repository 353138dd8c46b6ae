"""Every command where neither transformers nor pytest is installed: only Hugging Face's implementations need the first."""

import json
import os
import subprocess
import sys

import pytest

from conformance import load_golden, read_results
from conformance.results.records import CheckRecord
from conformance.tests.test_own_checkpoints import _write
from conformance.tests.third_party_models import STRANGERS

ABSENT = "raise ModuleNotFoundError(\"No module named '{0}'\", name='{0}')"
COMMANDS = [
    ["explain", "epsilon"],
    ["trace", "making-bert"],
    ["golden", "verify", "tiny"],
    ["map", f"{STRANGERS}.packed:PackedBert"],
    ["diagnose", "--checkpoint", "network", "outputs.json"],
    ["run", "making-bert", "hf-eager", "hf-compiled", "hf-onnx", "--golden", "tiny"],
]
SCRIPT = f"from conformance.cli import main\nfor command in {COMMANDS}:\n    assert main(command) == 0, command\n"


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CheckRecord]:
    """Return the checks by candidate of a run made after every other command, in processes in which both imports fail."""
    folder = tmp_path_factory.mktemp("without")
    for name in ("transformers", "pytest"):
        hidden = folder / "first on the path" / name
        hidden.mkdir(parents=True)
        (hidden / "__init__.py").write_text(ABSENT.format(name), "utf-8")
    tiny = load_golden("tiny")
    batch = tiny.batches["padded"]
    outputs = {
        "input_ids": batch.input_ids.tolist(),
        "attention_mask": batch.mask.astype(int).tolist(),
        "token_type_ids": batch.types.tolist(),
        "last_hidden_state": tiny.activations["padded"]["encoder.layer.1.output.LayerNorm"].tolist(),
    }
    (folder / "outputs.json").write_text(json.dumps(outputs), "utf-8")
    _write(folder / "network")
    environment = {**os.environ, "PYTHONPATH": str(hidden.parent)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return {c.implementation: c for c in read_results(folder / "conformance-results" / "results.jsonl").checks}


def test_every_other_candidate_is_judged_and_hugging_faces_are_skipped_with_the_install_command(
    checks: dict[str, CheckRecord],
) -> None:
    assert checks["making-bert"].outcome == "pass"
    assert checks["making-bert"].judged > 0
    for name in ("hf-eager", "hf-compiled", "hf-onnx"):
        assert (checks[name].outcome, checks[name].declared) == ("skip", True)
        assert "pip install 'bert-conformance[reference]'" in checks[name].reason
