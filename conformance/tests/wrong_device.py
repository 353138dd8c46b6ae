"""Candidates that use an accelerator wrongly, to be run from the command line."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from conformance import Checkpoint, TorchBatch
from conformance.implementations.making_bert import making_bert

INPUTS = ("input_ids", "token_type_ids", "attention_mask")


def _misusing(move: Callable[[Tensor], Tensor], place: str, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """Return a runner whose module is at that place, or on the requested device, and whose inputs are moved."""
    runner = making_bert.prepare(checkpoint, place or device, dtype)
    return lambda batch: runner(TorchBatch(**{name: move(getattr(batch.filled(), name)) for name in INPUTS}))


elsewhere = partial(_misusing, Tensor.cpu, "cpu")  # It computes on the CPU, whatever device is requested.
mixed = partial(_misusing, Tensor.cpu, "")  # Its module is on the device and its inputs are not.
beyond = beyond_as_well = partial(_misusing, lambda x: x + 1_000_000, "")  # It looks up an index beyond its table.


def ending(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """A candidate that ends its process."""
    return lambda batch: os._exit(0)
