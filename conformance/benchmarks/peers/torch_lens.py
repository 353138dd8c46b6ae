"""TorchLens: every operation of two runs, and the first operation in which they differ.

It uses `torchlens.debug.first_divergence`, as documented at https://github.com/johnmarktaylor91/torchlens.
"""

from pathlib import Path
from typing import Any

from conformance.benchmarks.subject import Subject


def torch_lens(reference: Subject, candidate: Subject, _: Path) -> str | None:
    """Return the module, the operation and the status of the first difference between the two traces."""
    from torchlens.debug import first_divergence

    expected, found = _trace(reference), _trace(candidate)
    row = first_divergence(expected, found)
    if row is None:
        return None
    op = (found if row["status"] == "only-b" else expected)[row["op"]]
    return f"{op.module or ''} {row['op']} {row['status']}".strip()


def _trace(subject: Subject) -> Any:
    import torch
    import torchlens

    b = subject.batch
    with torch.no_grad():
        return torchlens.trace(subject.bert, b.input_ids, {"attention_mask": b.attention_mask, "token_type_ids": b.token_type_ids})
