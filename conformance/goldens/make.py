"""Making the goldens, and verifying those that are stored."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from conformance.batch import Batch
from conformance.errors import ConformanceError, DependencyMissingError, FixtureError
from conformance.goldens import minilm, tiny
from conformance.goldens.digest import content_digest
from conformance.goldens.golden import Golden, load_golden
from conformance.judge.statistics import max_threshold, share
from conformance.numerics.arithmetic import hypotheses
from conformance.oracle import Network

TINY_SEED = 20_260_101


def _walk(architecture: Any, weights: Any, batch: Batch) -> dict[str, npt.NDArray[np.float64]]:
    network = Network(architecture, weights, batch)
    return {name: np.array(value, order="C") for name, value in network.walk()}


def _tokenized(folder: Path) -> Batch:
    """The sentences of `minilm` as one right-padded batch."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch([s if pair is None else (s, pair) for s, pair in minilm.SENTENCES])
    return Batch.of(
        {
            "input_ids": [e.ids for e in encoded],
            "token_type_ids": [e.type_ids for e in encoded],
            "attention_mask": [e.attention_mask for e in encoded],
        }
    )


def make(folder: Path) -> None:
    """Write every golden and the manifest into `folder`."""
    weights, batch = tiny.weights(TINY_SEED), tiny.batch(TINY_SEED)
    entries: dict[str, Any] = {
        "tiny": {
            "version": 1,
            "seed": TINY_SEED,
            "architecture": tiny.ARCHITECTURE.as_dict(),
            "weights_digest": content_digest(weights),
        },
        "minilm": {"version": 1, "package_digest": _file_digest(minilm.directory() / "model.safetensors")},
    }
    stored: dict[str, dict[str, npt.NDArray[Any]]] = {
        "tiny": {
            **{f"batch.{k}": v for k, v in batch.arrays().items()},
            **{f"activation.{k}": v for k, v in _walk(tiny.ARCHITECTURE, weights, batch).items()},
        },
        "minilm": {f"batch.{k}": v for k, v in _tokenized(minilm.directory()).arrays().items()},
    }
    for name, arrays in stored.items():
        entries[name]["stored_digest"] = content_digest(arrays)
        save_file(arrays, folder / f"{name}.safetensors")
    (folder / "manifest.json").write_text(json.dumps({"schema": 1, "goldens": entries}, indent=2) + "\n", "utf-8")


def _file_digest(file: Path) -> str:
    import hashlib

    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@dataclass(frozen=True)
class Verification:
    """One part of one golden's verification."""

    golden: str
    part: str
    outcome: str
    reason: str = ""


def verify(name: str, folder: Path | None = None) -> list[Verification]:
    """The three parts: stored files match their digests; weights and batch regenerate exactly; activations regenerate."""
    parts = ("stored files", "weights and batch", "activations")
    results: list[Verification] = []
    golden: Golden | None = None
    for part in parts:
        try:
            if part == "stored files":
                golden = load_golden(name, folder)
            elif golden is None:
                results.append(Verification(name, part, "skip", "the stored files could not be read"))
                continue
            elif part == "weights and batch":
                _verify_inputs(golden)
            else:
                _verify_activations(golden)
            results.append(Verification(name, part, "pass"))
        except DependencyMissingError as error:
            results.append(Verification(name, part, "skip", str(error)))
        except ConformanceError as error:
            results.append(Verification(name, part, "fail", str(error)))
    return results


def _verify_inputs(golden: Golden) -> None:
    checkpoint = golden.checkpoint  # raises where the weights are not the manifest's
    again = tiny.batch(golden.entry["seed"]) if "seed" in golden.entry else _tokenized(minilm.directory())
    if content_digest(again.arrays()) != content_digest(golden.batch.arrays()):
        raise FixtureError(f"golden {golden.name}: the batch regenerates differently")
    assert checkpoint.architecture.vocab_size > int(golden.batch.input_ids.max())


def _verify_activations(golden: Golden) -> None:
    """Stored against regenerated: each element within the threshold of two float64 computations of the same step."""
    checkpoint = golden.checkpoint
    if not golden.activations:
        raise DependencyMissingError("nothing to compare: this golden stores no activations, the oracle computes them on the spot")
    network = Network(checkpoint.architecture, checkpoint.weights, golden.batch)
    if set(network.table) != set(golden.activations):
        raise FixtureError(f"golden {golden.name}: the stored activations are not those of the table")
    hypothesis = hypotheses("float64")[0]
    alpha = share(len(network.table))
    for name, row in network.table.items():
        stored = golden.activations[name]
        step = network.step(name, *(golden.activations[p] for p in row.parents))
        own = step.roundings(hypothesis.arithmetic)
        room = max_threshold(stored.size, alpha) * np.sqrt(2.0 * own.variance()) + 2.0 * np.asarray(own.bound)
        if (np.abs(step.value - stored) > room).any():
            raise FixtureError(f"golden {golden.name}: {name} regenerates differently")


__all__ = ["Verification", "make", "verify"]
