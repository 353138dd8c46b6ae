"""The gradients stored beside a golden equal those of autograd, and alterations are noticed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from conformance import load_golden
from conformance.errors import FixtureError
from conformance.goldens.manifest import DEFAULT_GOLDENS, GRADIENTS, MANIFEST, ManifestEntry, fixtures_directory, of_entry
from conformance.implementations.demystified import demystified
from conformance.implementations.hugging_face import hf_eager
from conformance.judge.verify_goldens import verify
from conformance.model.activations import parameter_shapes
from conformance.model.digest import content_digest
from conformance.model.gradients import grad

CANDIDATES = {"tiny": hf_eager, "sinusoidal": demystified}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy of the goldens' folder, to be damaged."""
    shutil.copytree(fixtures_directory(), tmp_path / "fixtures")
    return tmp_path / "fixtures"


def _rewritten(home: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Replace the file of `tiny`'s gradients, with correct digests."""
    file, manifest = home / f"tiny{GRADIENTS}", home / MANIFEST
    arrays = load_file(file)
    change(arrays)
    save_file(arrays, file)
    said = json.loads(manifest.read_text("utf-8"))
    entry = said["goldens"]["tiny"]
    entry["gradients_digest"] = content_digest(arrays)
    of = ManifestEntry(**entry)
    entry["digest"] = of_entry(of.version, of.architecture, of.batches, of.weights_digest, of.stored_digest, of.gradients_digest)
    manifest.write_text(json.dumps(said), "utf-8")


@pytest.mark.parametrize("name", DEFAULT_GOLDENS)
def test_every_parameter_has_a_gradient_from_at_least_one_source(name: str) -> None:
    golden = load_golden(name)
    for by_source in golden.gradients.values():
        found = {of for gradients in by_source.values() for of in gradients}
        assert {grad(of) for of in parameter_shapes(golden.checkpoint.architecture)} <= found


@pytest.mark.parametrize("name", DEFAULT_GOLDENS)
def test_they_equal_those_of_autograd_in_float64(name: str) -> None:
    golden = load_golden(name)
    runner: Any = CANDIDATES[name].prepare(golden.checkpoint, "cpu", "float64")
    compared = 0
    for batch, by_source in golden.gradients.items():
        for source, stored in by_source.items():
            autograd = dict(runner.gradients(golden.batches[batch].on("cpu"), source, torch.ones((), dtype=torch.float64)))
            for of in stored.keys() & autograd.keys():
                compared += 1
                # 50,000 ULP of float64. A key bias's gradient is 0 up to rounding: 10 u √96 · 0.05, for 96 terms of up to 0.05.
                room = 1e-11 * max(np.abs(stored[of]).max(), 1e-3)
                np.testing.assert_allclose(autograd[of].numpy(), stored[of], rtol=0.0, atol=room, err_msg=of)
    assert compared > 40


def test_an_altered_missing_or_exchanged_file_is_an_error(home: Path) -> None:
    file = home / f"tiny{GRADIENTS}"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(FixtureError, match="it was altered"):
        load_golden("tiny", home).gradients  # noqa: B018 -- it is read when it is asked for
    for damage in (lambda: None, file.unlink, lambda: shutil.copy(home / f"sinusoidal{GRADIENTS}", file)):
        damage()
        assert [(v.part, v.outcome) for v in verify("tiny", home)][-1] == ("gradients", "fail")


def test_a_manifest_with_another_digest_of_the_gradients_is_an_error(home: Path) -> None:
    text = (home / MANIFEST).read_text("utf-8")
    digest = json.loads(text)["goldens"]["tiny"]["gradients_digest"]
    (home / MANIFEST).write_text(text.replace(digest, "0" * 64), "utf-8")
    with pytest.raises(FixtureError, match="its entry in the manifest is not as it was written"):
        load_golden("tiny", home)


def test_a_gradient_that_differs_by_more_than_rounding_or_is_missing_is_noticed(home: Path) -> None:
    name = "gradient/padded/cls.loss/bert.encoder.layer.0.attention.self.query.weight.grad"
    _rewritten(home, lambda arrays: arrays.update({name: arrays[name] * (1.0 + 1e-12)}))
    last = verify("tiny", home)[-1]
    assert (last.part, last.outcome) == ("gradients", "fail")
    assert "query.weight.grad of padded, from cls.loss, regenerates differently" in last.reason
    _rewritten(home, lambda arrays: arrays.pop("gradient/padded/cls.loss/bert.pooler.dense.weight.grad"))
    assert "is not what is kept of the table" in verify("tiny", home)[-1].reason
