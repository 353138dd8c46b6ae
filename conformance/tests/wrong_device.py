"""Candidates that are at odds with an accelerator, for a run from the command line."""

from typing import Any

from conformance import Checkpoint, TorchBatch
from implementations.making_bert import making_bert


def elsewhere(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """Computes on the CPU, whatever it is asked for."""
    runner = making_bert.prepare(checkpoint, "cpu", dtype)
    return lambda batch: runner(_moved(batch, lambda x: x.cpu()))


def mixed(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """Its module is on the device and its inputs are not."""
    runner = making_bert.prepare(checkpoint, device, dtype)
    return lambda batch: runner(_moved(batch, lambda x: x.cpu()))


def beyond(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """Looks up what its table does not have."""
    runner, rows = making_bert.prepare(checkpoint, device, dtype), checkpoint.architecture.vocab_size
    return lambda batch: runner(_moved(batch, lambda x: x + rows))


def beyond_as_well(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """The same."""
    return beyond(checkpoint, device, dtype)


def ending(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """Ends the process that it is in."""
    import os

    return lambda batch: os._exit(0)


def _moved(batch: TorchBatch, move: Any) -> TorchBatch:
    full = batch.filled()
    return TorchBatch(**{name: move(getattr(full, name)) for name in ("input_ids", "token_type_ids", "attention_mask")})
