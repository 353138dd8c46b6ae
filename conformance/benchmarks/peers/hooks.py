"""Plain forward hooks, and `torch.testing.assert_close` of the outputs they copied."""

from pathlib import Path
from typing import Any

import torch

from conformance.benchmarks.subject import Subject


def copied(subject: Subject) -> dict[str, torch.Tensor]:
    """Return a copy of every module's output by path, in the order in which they returned."""
    found: dict[str, torch.Tensor] = {}

    def hook(path: str, returned: Any) -> None:
        tensor = returned[0] if isinstance(returned, tuple) else returned
        if isinstance(tensor, torch.Tensor):
            found[path] = tensor.clone()

    handles = [
        module.register_forward_hook(lambda _, __, returned, path=path: hook(path, returned))
        for path, module in subject.bert.named_modules()
    ]
    try:
        subject.plain()
    finally:
        for handle in handles:
            handle.remove()
    return found


def hooks(_: Subject, candidate: Subject, __: Path) -> None:
    """Copy the candidate's activations and discard them."""
    copied(candidate)


def assert_close(reference: Subject, candidate: Subject, _: Path) -> str | None:
    """Return the first module whose output is not close to the reference's."""
    expected = copied(reference)
    for path, tensor in copied(candidate).items():
        try:
            torch.testing.assert_close(tensor, expected[path])
        except AssertionError:
            return path
    return None
