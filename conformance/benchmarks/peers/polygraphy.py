"""Polygraphy's comparator, applied to results computed outside of it.

Its `PytRunner` needs CUDA; `RunResults.add` is the documented way to supply outputs from another source:
https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/polygraphy/comparator/toc.html
"""

from pathlib import Path
from typing import Any

from conformance.benchmarks.peers.hooks import copied
from conformance.benchmarks.subject import Subject


def polygraphy(reference: Subject, candidate: Subject, _: Path) -> str | None:
    """Return the first output that does not match."""
    from polygraphy.comparator import Comparator, RunResults

    results = RunResults()
    results.add([_arrays(candidate)], runner_name="candidate")
    results.add([_arrays(reference)], runner_name="reference")
    compared: Any = Comparator.compare_accuracy(results)[0]
    ((outputs,),) = compared.values()
    return next((name for name, matched in outputs.items() if not matched), None)


def _arrays(subject: Subject) -> dict[str, Any]:
    return {path: tensor.numpy() for path, tensor in copied(subject).items()}
