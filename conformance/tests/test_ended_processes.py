"""Candidates whose process ends: which check says so, and what the checks after it find; and messages between the processes."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from conformance import Checkpoint
from conformance.candidates.arrays import described
from conformance.checks.catalogue import CHECKS
from conformance.checks.run_check import run_check
from conformance.checks.search.plan import Plan
from conformance.errors import CandidateEnded
from conformance.implementations.making_bert import making_bert
from conformance.isolation.link import Link, NoMessageError


class Ending:
    """making-bert, which raises what a worker's end raises, where `ends` says so: a function of the batch and of its process."""

    def __init__(self, ends: Callable[[Any, int], bool]) -> None:
        self.ends, self.prepared = ends, 0

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        self.prepared += 1
        process, run = self.prepared, making_bert.prepare(checkpoint, device, dtype)

        def called(batch: Any) -> Any:
            if self.ends(batch, process):
                raise CandidateEnded("its process ended")
            return run(batch)

        return called


def test_a_process_that_ended_in_one_law_is_not_asked_in_the_next() -> None:
    candidate = Ending(lambda _, process: process == 1)
    found = [run_check(CHECKS["repeated"], candidate, "tiny", "cpu", "float32", plan=Plan(2)) for _ in range(2)]
    assert [(one.outcome, one.reason[:17]) for one in found] == [("crash", "its process ended"), ("pass", "")]


@pytest.mark.parametrize("examples", [1, 2])
def test_a_process_that_ends_at_a_mask_of_another_dtype_has_not_refused_it(examples: int) -> None:
    candidate = Ending(lambda batch, _: batch.attention_mask.dtype == torch.bool)
    result = run_check(CHECKS["mask-dtype"], candidate, "tiny", "cpu", "float32", plan=Plan(examples))
    assert (result.outcome, result.reason) == ("crash", "its process ended")


def test_a_question_may_be_longer_than_an_answer_without_its_arrays() -> None:
    """It may contain an upstream gradient, and this process is trusted by the candidate's."""
    message = bytes(2**24 + 1)

    def received(**options: float) -> bytes:
        ours, theirs = (Link(end) for end in socket.socketpair())
        sending = threading.Thread(target=lambda: _sent(ours, message), daemon=True)
        sending.start()
        try:
            return theirs.receive(**options)[0]
        finally:
            theirs.close()
            sending.join()

    assert received(longest=float("inf")) == message
    with pytest.raises(NoMessageError, match="a message of 16777"):
        received()


def _sent(link: Link, message: bytes) -> None:
    try:
        link.send(message)
    except OSError:  # The other end does not read it.
        link.close()


def test_an_array_in_ml_dtypes_bfloat16_is_read_in_float32() -> None:
    found = described(np.array([1.0, 2.5], ml_dtypes.bfloat16))
    assert found.dtype == "bfloat16"
    assert found.read().dtype == np.float32
    assert found.read().tolist() == [1.0, 2.5]
