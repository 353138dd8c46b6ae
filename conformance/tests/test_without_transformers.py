"""Every command where transformers is not installed: only Hugging Face's own implementations need it."""

import json
import os
import subprocess
import sys

import pytest

from conformance import load_golden, read_results
from conformance.results.records import CheckRecord
from conformance.tests.test_own_checkpoints import _write

ABSENT = "raise ModuleNotFoundError(\"No module named 'transformers'\", name='transformers')"
COMMANDS = [
    ["explain", "epsilon"],
    ["trace", "making-bert"],
    ["golden", "verify", "tiny"],
    ["diagnose", "--checkpoint", "network", "--outputs", "outputs.json"],
    ["run", *(f"-i={name}" for name in ("making-bert", "hf-eager", "hf-compiled", "hf-onnx")), "--golden", "tiny"],
]
SCRIPT = f"from conformance.cli import main\nfor command in {COMMANDS}:\n    assert main(command) == 0, command\n"


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CheckRecord]:
    """Return the checks by candidate of a run made after every other command, in processes in which importing transformers
    fails."""
    folder = tmp_path_factory.mktemp("without")
    hidden = folder / "first on the path" / "transformers"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text(ABSENT, "utf-8")
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


def test_every_other_candidate_is_judged_without_transformers(checks: dict[str, CheckRecord]) -> None:
    assert checks["making-bert"].outcome == "pass"
    assert checks["making-bert"].judged > 0


@pytest.mark.parametrize("name", ["hf-eager", "hf-compiled", "hf-onnx"])
def test_an_implementation_of_hugging_face_is_skipped_with_the_install_command(name: str, checks: dict[str, CheckRecord]) -> None:
    assert (checks[name].outcome, checks[name].declared) == ("skip", True)
    assert "pip install 'bert-conformance[reference]'" in checks[name].reason
