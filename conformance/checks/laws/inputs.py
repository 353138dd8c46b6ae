"""Laws on the optional inputs: an omitted mask is all ones, omitted token types are zero, and the mask's dtype has no effect."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.checks.laws.law import Law, require_no_effect, run_of
from conformance.checks.search.agreement import RowPairs, require_agreement
from conformance.checks.search.strategies import Batches
from conformance.checks.search.subject import Subject
from conformance.errors import CandidateCrash, CandidateEnded
from conformance.model.batch import TorchBatch
from conformance.results.example import Example
from conformance.results.law_broken import Run

MASKS = ("bool", "uint8", "int32", "float32")  # in addition to int64, the dtype of a batch


def _omitted_is_all_ones(subject: Subject, example: Example) -> float:
    batch = example.batch
    given = replace(batch, attention_mask=np.ones_like(batch.input_ids))
    return require_no_effect(subject, given, replace(batch, attention_mask=None))


mask_omitted = Law(_omitted_is_all_ones, Batches(patterns=("omitted",)))


def _omitted_are_zero(subject: Subject, example: Example) -> float:
    batch = example.batch
    given = replace(batch, token_type_ids=np.zeros_like(batch.input_ids))
    return require_no_effect(subject, given, replace(batch, token_type_ids=None))


token_types_omitted = Law(_omitted_are_zero, Batches(token_types=False))


def _dtype_does_not_matter(subject: Subject, example: Example) -> float:
    """Require that each dtype other than int64, which the contract guarantees, is refused or has the same meaning."""
    first, rows = run_of(subject, example.batch), range(example.batch.size)
    excess = 0.0
    for dtype in MASKS:
        try:
            second = Run(example.batch, subject.run(example.batch, _cast(dtype)), dtype)
        except CandidateEnded:
            raise
        except CandidateCrash:
            continue
        excess = max(excess, require_agreement(subject, first, second, RowPairs(rows, rows)))
    return excess


def _cast(dtype: str) -> Callable[[TorchBatch], TorchBatch]:
    import torch

    def cast(given: TorchBatch) -> TorchBatch:
        assert given.attention_mask is not None
        given.attention_mask = given.attention_mask.to(getattr(torch, dtype))
        return given

    return cast


mask_dtype = Law(_dtype_does_not_matter, Batches(patterns=("right", "left", "holes")))
