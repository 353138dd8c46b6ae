"""What the optional inputs mean: a mask that is left out is all ones, token types that are left out are zero, and the mask's dtype
is nobody's business.
"""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from conformance.architecture import Architecture
from conformance.batch import Batch, TorchBatch
from conformance.errors import CandidateCrash
from conformance.laws.law import Law, Variation, run_of
from conformance.search.agreement import Alike, require_agreement
from conformance.search.broken import Run
from conformance.search.example import Example
from conformance.search.strategies import batches
from conformance.search.subject import Subject

MASKS = ("bool", "uint8", "int32", "float32")  # int64 is what a batch has


def _omitted_is_all_ones(subject: Subject, example: Example) -> float:
    batch, rows = example.batch, range(example.batch.size)
    given = replace(batch, attention_mask=np.ones_like(batch.input_ids))
    omitted = replace(batch, attention_mask=None)
    return require_agreement(subject, run_of(subject, given), run_of(subject, omitted), Alike(rows, rows))


mask_omitted = Law(_omitted_is_all_ones, lambda a: batches(a, patterns=("omitted",)))


def _omitted_are_zero(subject: Subject, example: Example) -> float:
    batch, rows = example.batch, range(example.batch.size)
    given = replace(batch, token_type_ids=np.zeros_like(batch.input_ids))
    omitted = replace(batch, token_type_ids=None)
    return require_agreement(subject, run_of(subject, given), run_of(subject, omitted), Alike(rows, rows))


token_types_omitted = Law(_omitted_are_zero, lambda a: batches(a, token_types=False))


def _dtypes(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    return st.fixed_dictionaries({"dtype": st.sampled_from(MASKS)})


def _dtype_does_not_matter(subject: Subject, example: Example) -> float:
    """A candidate may refuse what it is not promised, and it is promised int64; it may not take it for something else."""
    import torch

    batch, rows, dtype = example.batch, range(example.batch.size), example.variation["dtype"]

    def cast(given: TorchBatch) -> TorchBatch:
        assert given.attention_mask is not None
        given.attention_mask = given.attention_mask.to(getattr(torch, dtype))
        return given

    first = run_of(subject, batch)
    try:
        second = Run(batch, subject.run(batch, cast), dtype)
    except CandidateCrash:
        return 0.0
    return require_agreement(subject, first, second, Alike(rows, rows))


mask_dtype = Law(_dtype_does_not_matter, lambda a: batches(a, patterns=("right", "left", "holes")), _dtypes)
