"""The subject of a search: one candidate, prepared for one network on one device in one dtype, and run on many batches.

A subject that runs at only one length or batch size, like a program exported with static shapes, is detected.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from conformance.candidates.arrays import pairs
from conformance.candidates.registry import Isolated, Runner
from conformance.checks.candidate_device import functions_of, inputs_device
from conformance.checks.contract import accepted, guarded, prepared
from conformance.checks.search.surroundings import Surroundings
from conformance.errors import (
    CandidateCrash,
    CandidateEnded,
    CandidateError,
    CandidateFailure,
)
from conformance.judge.local_error import Screened, screened
from conformance.model.activations import outputs, table
from conformance.model.batch import Batch, TorchBatch
from conformance.model.checkpoint import Checkpoint, rounded_weights
from conformance.numerics.formats import Array
from conformance.numerics.function_error_bounds import FunctionErrorBounds
from conformance.numerics.memo import IdentityKey
from conformance.oracle import Network
from conformance.results.example import Run, Values
from conformance.results.termination import call_candidate


@dataclass(frozen=True)
class Subject:
    """A prepared candidate.

    Attributes:
        candidate: the implementation.
        checkpoint, device, dtype: the arguments with which the candidate was prepared.
        runner: the value returned by `prepare`.
        name: the name by which the candidate is loaded, if it has one.
        tests: the number of comparisons among which the false-alarm probability is shared.
    """

    candidate: Any
    checkpoint: Checkpoint
    device: str
    dtype: str
    runner: Runner
    name: str = ""
    tests: int = 1

    @classmethod
    def prepared(cls, candidate: Any, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> "Subject":
        """Return a subject with a newly prepared candidate; raise `CandidateError` or `CandidateCrash` if it cannot be prepared."""
        return cls(candidate, checkpoint, device, dtype, prepared(candidate, checkpoint, device, dtype))

    def afresh(self, checkpoint: Checkpoint | None = None) -> "Subject":
        """Return a subject with a new runner that has not been called yet, for the same checkpoint unless another is given."""
        return replace(self, runner=prepared(self.candidate, checkpoint or self.checkpoint, self.device, self.dtype))

    @property
    def weights(self) -> Mapping[str, Array]:
        """The parameters, rounded to the candidate's dtype."""
        return _all_weights(IdentityKey(self.checkpoint), self.dtype)

    @property
    def functions(self) -> FunctionErrorBounds:
        """The error bounds of the library functions that the candidate calls; raises `MachineError` if one is too large."""
        return functions_of(self.candidate, self.device)

    @property
    def surroundings(self) -> Surroundings:
        """The surroundings of the runner: its module and its process."""
        runner: Any = self.runner
        found: Surroundings = runner.surroundings if isinstance(self.runner, Isolated) else Surroundings(runner, self.device)
        return found

    def network(self, batch: Batch) -> Network:
        """Return the oracle's network on a batch."""
        return Network(self.checkpoint.architecture, self.weights, batch.held_in(self.dtype))

    def run(self, batch: Batch, given: Callable[[TorchBatch], TorchBatch] = lambda batch: batch) -> Values:
        """Run the candidate and return every activation that it exposes, in float64, in the order in which they are yielded.

        The contract is checked as in a judgement. `given` changes the batch that is
        passed to the candidate.

        Raises:
            CandidateError: for an unknown name, a wrong shape or dtype, or a value that is not finite; or if no output is exposed.
            CandidateCrash: if the candidate raises.
        """
        try:
            return self._accepted(batch, self._answer(given(self._here(batch)), table(self.checkpoint.architecture)))
        except CandidateFailure as failure:
            failure.batch = batch
            raise

    def screened(self, run: Run) -> list[Screened]:
        """Return the judgement of each activation of a run from the candidate's own inputs to it, in the order of computation."""
        return screened(self.network(run.batch), run.values, self.dtype, self.device, self.tests, self.functions)

    def _here(self, batch: Batch) -> TorchBatch:
        """Return the batch on the candidate's device; guarded because an earlier call may have broken the device."""
        return call_candidate(lambda: batch.on(inputs_device(self.candidate, self.device)))

    def _accepted(self, batch: Batch, answer: Iterable[tuple[str, Any]]) -> Values:
        """Return the candidate's activations; raise `CandidateError` if they violate the contract."""
        network = self.network(batch)
        values = dict(accepted(answer, network, self.dtype, self.device))
        if not any(name in values for name in outputs(network.architecture)):
            raise CandidateError(f"no output is exposed: at least one of {', '.join(outputs(network.architecture))} is")
        return values

    def answers(self, batch: Batch) -> bool:
        """Return whether the candidate completes a batch, with any result; raise `CandidateEnded` if it ends its process."""
        return _completes(lambda: deque(self._answer(self._here(batch), ()), maxlen=0))

    def _answer(self, batch: TorchBatch, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Yield the candidate's pairs one at a time, since the candidate may reuse the memory of one for the next."""
        from conformance.candidates.capture import at_once  # imports torch

        with at_once():
            stream = pairs(call_candidate(lambda: self.runner(batch)), names)
        yield from guarded(stream, at_once)


@lru_cache(maxsize=1)
def _all_weights(checkpoint: IdentityKey[Checkpoint], dtype: str) -> Mapping[str, Array]:
    """Return all rounded weights, converted once because a search reads them for every batch."""
    return dict(rounded_weights(checkpoint.value, dtype))


def static_shape(subject: Subject, batches: Mapping[str, Batch]) -> str:
    """Return a message on the static size if the largest batch runs and no smaller version of it does; otherwise empty text.

    The largest must run after those as well. A candidate whose process ends is not known to have a static size.
    """
    with suppress(CandidateEnded):
        return _static_shape(subject, batches)
    return ""


def _static_shape(subject: Subject, batches: Mapping[str, Batch]) -> str:
    whole = max(batches.values(), key=lambda batch: batch.input_ids.size)

    def runs(batch: Batch) -> bool:
        return _completes(lambda: subject.run(batch))

    if not runs(whole):
        return ""
    for what, size, cut in (("length", whole.length, shorter), ("batch size", whole.size, fewer)):
        # Size 1 is used only if there is no other, since broadcasting would let it run with a wrong result.
        smaller = sorted({2, (size + 1) // 2, size - 1} - {0, 1, size}) or [1] * (size > 1)
        if smaller and not any(runs(cut(whole, n)) for n in smaller) and runs(whole):
            return fixed_size(what, size, f" ({', '.join(map(str, smaller))})")
    return ""


def fixed_size(what: str, size: int, tried: str = "") -> str:
    """Return the start of a message on a candidate that runs at one length or batch size (`what`) only."""
    return f"its {what} is fixed: it runs at {size}, and at no other that was tried{tried}; "


def _completes(run: Callable[[], object]) -> bool:
    """Return whether a call of the candidate neither raises nor violates the contract; raise `CandidateEnded`."""
    try:
        run()
    except CandidateEnded:
        raise
    except (CandidateError, CandidateCrash):
        return False
    return True


def shorter(batch: Batch, length: int) -> Batch:
    """Return the first tokens of each row of a batch."""
    return batch.cut(slice(None), length)


def fewer(batch: Batch, size: int) -> Batch:
    """Return the first rows of a batch."""
    return batch.cut(slice(size))
