"""The runs that every tool is asked about: a correct one that computes otherwise, the reference again, and two mistakes."""

from collections.abc import Iterator
from functools import partial

from torch.nn.functional import gelu

from conformance.benchmarks.cost import Subject
from conformance.goldens.golden import load_golden

LAYER = 1  # of the mistakes
# Real weights, on which constants that suit other networks are tried; and generated ones, which every tool can take too.
GOLDENS = ("minilm", "tiny")
NORM = f"encoder.layer.{LAYER}.attention.output.LayerNorm"
ACTIVATION = f"encoder.layer.{LAYER}.intermediate.intermediate_act_fn"


def subject(golden: str, attention: str = "eager") -> Subject:
    """Hugging Face's BERT with a golden's checkpoint and first batch."""
    loaded = load_golden(golden)
    return Subject(loaded.checkpoint, next(iter(loaded.batches.values())), attention)


def candidates(golden: str) -> Iterator[tuple[str, Subject, str | None]]:
    """Each with its name and the activation at which it differs first, None where it is correct."""
    yield "repeated", subject(golden), None
    yield "SDPA", subject(golden, "sdpa"), None
    epsilon = subject(golden)
    epsilon.bert.get_submodule(NORM).eps = 1e-5
    yield "epsilon", epsilon, NORM
    tanh = subject(golden)
    # The module stays of its class, so that tools which pair modules by class can pair it.
    tanh.bert.get_submodule(ACTIVATION).act = partial(gelu, approximate="tanh")
    yield "tanh-GELU", tanh, ACTIVATION
