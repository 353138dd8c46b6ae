"""The candidates of the frozen record, each an attribute of this module: shipped, correct but unusual, wrong, crashing, hanging."""

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.model.batch import TorchBatch
from conformance.model.checkpoint import Checkpoint

SHIPPED = ("hf-eager", "hf-sdpa", "torch-encoder", "inner-workings", "making-bert", "demystified", "demystified-as-written")
UNUSUAL = (
    *("as the paper writes it", "norm, every operation rounded", "norm of an unrounded sum", "softmax, every operation rounded"),
    *("torch's own attention", "softmax online, over blocks of keys", "products in eight parts, stored and added"),
    *("GELU by erfc", "everything of several kinds", "everything in float64, rounded when shown", "norms only", "logits only"),
    *("the last hidden state only", "padding zeroed", "one sequence at a time"),
)
WRONG = (
    *("epsilon", "gelu-variant", "scale-missing", "mask-ignored", "pre-norm", "residual-missing", "heads-unmoved"),
    *("query-key-swapped", "parameters-other", "pooler-mean", "layer-skipped", "dropout-active", "precision-bfloat16"),
)
LAST_HIDDEN = re.compile(r"encoder\.layer\.\d+\.output\.LayerNorm")


def _only_layers(name: str) -> bool:
    return LAST_HIDDEN.fullmatch(name) is not None


class Altered:
    """A candidate that does something to the activations of a right network before it returns them."""

    def __init__(self, alter: Callable[[dict[str, Tensor]], Any]) -> None:
        self.alter = alter

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[TorchBatch], Any]:
        """Return a runner of the network with the altered activations."""
        run = Candidate().prepare(checkpoint, device, dtype)
        return lambda batch: self.alter(dict(run(batch)))


def _raises(activations: dict[str, Tensor]) -> Any:
    raise ValueError("no such input")


def _aborts(activations: dict[str, Tensor]) -> Any:
    os.abort()


def _hangs(activations: dict[str, Tensor]) -> Any:
    time.sleep(60)


def _not_finite(activations: dict[str, Tensor]) -> Any:
    name = "encoder.layer.0.intermediate.dense"
    return activations | {name: torch.where(activations[name] > 1, torch.nan, activations[name])}


def _other_shape(activations: dict[str, Tensor]) -> Any:
    name = "encoder.layer.0.attention.self.query"
    return activations | {name: activations[name].flatten(1)}


IN_PROCESS: Mapping[str, Any] = {
    **{name: VARIANTS[name] for name in UNUSUAL},
    **{f"{name} in layer 0": Candidate([MISTAKES[name].at(0)]) for name in WRONG},
    **{f"{name}, only layers shown": Candidate([MISTAKES[name].at(0)], _only_layers) for name in ("epsilon", "gelu-variant")},
    "two mistakes": Candidate([MISTAKES["epsilon"].at(0), MISTAKES["gelu-variant"].at(0)]),
    "an error is raised": Altered(_raises),
    "numbers that are not finite": Altered(_not_finite),
    "another shape": Altered(_other_shape),
    "nothing is returned": Altered(lambda activations: {}),
}
"""The candidates that are run in the same process, by name."""

ISOLATED: Mapping[str, Any] = {"the process is aborted": Altered(_aborts), "it hangs": Altered(_hangs)}
"""Those that need a process of their own, and a time limit."""


def attribute(name: str) -> str:
    """Return the attribute of this module that is the candidate of this name."""
    return re.sub(r"\W+", "_", name)


def __getattr__(wanted: str) -> Any:
    for name, candidate in {**IN_PROCESS, **ISOLATED}.items():
        if attribute(name) == wanted:
            return candidate
    raise AttributeError(wanted)
