"""Candidates that use an accelerator wrongly, to be run from the command line."""

from typing import Any

from conformance import Checkpoint, TorchBatch
from conformance.implementations.making_bert import making_bert


def elsewhere(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """A candidate that computes on the CPU, whatever device is requested."""
    runner = making_bert.prepare(checkpoint, "cpu", dtype)
    return lambda batch: runner(_moved(batch, lambda x: x.cpu()))


def mixed(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """A candidate whose module is on the device and whose inputs are not."""
    runner = making_bert.prepare(checkpoint, device, dtype)
    return lambda batch: runner(_moved(batch, lambda x: x.cpu()))


def beyond(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """A candidate that looks up an index beyond its table."""
    runner, rows = making_bert.prepare(checkpoint, device, dtype), checkpoint.architecture.vocab_size
    return lambda batch: runner(_moved(batch, lambda x: x + rows))


def beyond_as_well(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """A second candidate that looks up an index beyond its table."""
    return beyond(checkpoint, device, dtype)


def ending(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """A candidate that ends its process."""
    import os

    return lambda batch: os._exit(0)


def _moved(batch: TorchBatch, move: Any) -> TorchBatch:
    full = batch.filled()
    return TorchBatch(**{name: move(getattr(full, name)) for name in ("input_ids", "token_type_ids", "attention_mask")})
