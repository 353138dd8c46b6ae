"""Conformance tests for BERT implementations: is it right, and if not, where, by how much and which mistake is it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from conformance.architecture import Architecture
    from conformance.batch import Batch, TorchBatch
    from conformance.capture import Tap, captured
    from conformance.checkpoint import Checkpoint
    from conformance.goldens.golden import Golden, load_golden
    from conformance.goldens.own import golden_of
    from conformance.result import Result
    from conformance.run import check

# Where each public name lives; imported when first asked for, so that the command line answers without torch.
_PUBLIC = {
    "Architecture": "architecture",
    "Batch": "batch",
    "Checkpoint": "checkpoint",
    "Golden": "goldens.golden",
    "Result": "result",
    "Tap": "capture",
    "TorchBatch": "batch",
    "captured": "capture",
    "check": "run",
    "golden_of": "goldens.own",
    "load_golden": "goldens.golden",
}

__all__ = [
    "Architecture",
    "Batch",
    "Checkpoint",
    "Golden",
    "Result",
    "Tap",
    "TorchBatch",
    "captured",
    "check",
    "golden_of",
    "load_golden",
]


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'conformance' has no attribute {name!r}")
    return getattr(import_module(f"conformance.{_PUBLIC[name]}"), name)
