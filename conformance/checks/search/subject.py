"""A subject: one candidate, prepared for one network on one device in one dtype, and run on the batches of a search."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from conformance.candidates.capture import at_once
from conformance.candidates.registry import Runner
from conformance.candidates.stream import pairs
from conformance.checks.placement import functions_of, inputs_device
from conformance.checks.search.identity_key import IdentityKey
from conformance.checks.search.surroundings import Surroundings, surroundings_here
from conformance.checks.session import accepted, prepared
from conformance.errors import CandidateCrash, CandidateEnded, CandidateError, CandidateFailure
from conformance.model.activations import outputs, table
from conformance.model.batch import Batch, TorchBatch
from conformance.model.checkpoint import Checkpoint, rounded_weights
from conformance.numerics.accuracy import Accuracy
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.results.law_broken import Values
from conformance.results.termination import call_candidate


class IsolatedRunner(ABC):
    """A runner in another process."""

    @property
    @abstractmethod
    def surroundings(self) -> Surroundings:
        """Those there."""

    @abstractmethod
    def answers_apart(self, subject: "Subject", batch: Batch) -> bool:
        """`search.child.answers_in_a_child`, of a child of that process."""


@dataclass(frozen=True)
class Subject:
    """A prepared candidate.

    Attributes:
        candidate: the implementation.
        checkpoint, device, dtype: what it was prepared for.
        golden: the name under which its network is opened.
        name: the one under which the candidate is loaded, where it has one.
        runner: what `prepare` gave.
        tests: among how many comparisons the false-alarm probability is shared.
    """

    candidate: Any
    checkpoint: Checkpoint
    device: str
    dtype: str
    golden: str
    runner: Runner
    name: str = ""
    tests: int = 1

    @classmethod
    def prepared(
        cls, candidate: Any, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32", golden: str = ""
    ) -> "Subject":
        """Prepare the candidate; raises `CandidateError` or `CandidateCrash`."""
        return cls(candidate, checkpoint, device, dtype, golden, prepared(candidate, checkpoint, device, dtype))

    def afresh(self, checkpoint: Checkpoint | None = None) -> "Subject":
        """The same, prepared anew, of another checkpoint where one is given: it has not been called yet."""
        return replace(self, runner=prepared(self.candidate, checkpoint or self.checkpoint, self.device, self.dtype))

    @property
    def weights(self) -> Mapping[str, Array]:
        """The parameters as the candidate holds them."""
        return _all_weights(IdentityKey(self.checkpoint), self.dtype)

    @property
    def functions(self) -> Accuracy:
        """The accuracy of the library functions where it runs; raises `MachineError`."""
        return functions_of(self.candidate, self.device)

    @property
    def surroundings(self) -> Surroundings:
        """The runner's module, and its process."""
        runner = self.runner
        return runner.surroundings if isinstance(runner, IsolatedRunner) else surroundings_here(runner, self.device)

    def network(self, batch: Batch) -> Network:
        """The oracle's network on that batch."""
        return Network(self.checkpoint.architecture, self.weights, batch.held_in(self.dtype))

    def run(self, batch: Batch, given: Callable[[TorchBatch], TorchBatch] = lambda batch: batch) -> Values:
        """Every activation that the candidate exposes, float64, in the order in which it came.

        `given` may change what the candidate is handed. The contract is checked as in a judgement.

        Raises:
            CandidateError: an unknown name, a wrong shape or dtype, a value that is not finite; or no output.
            CandidateCrash: the candidate raised.
        """
        try:
            return self._accepted(batch, self._answer(given(self._here(batch)), table(self.checkpoint.architecture)))
        except CandidateFailure as failure:
            failure.batch = batch
            raise

    def _here(self, batch: Batch) -> TorchBatch:
        """On its device, which the candidate may have broken before."""
        return call_candidate(lambda: batch.on(inputs_device(self.candidate, self.device)))

    def _accepted(self, batch: Batch, answer: Iterable[tuple[str, Any]]) -> Values:
        """The candidate's pairs, once each is what the contract says."""
        network = self.network(batch)
        values = dict(accepted(answer, network, self.dtype, self.device))
        if not any(name in values for name in outputs(network.architecture)):
            raise CandidateError(f"no output is exposed: at least one of {', '.join(outputs(network.architecture))} is")
        return values

    def answers(self, batch: Batch) -> bool:
        """Whether the candidate runs to its end on that batch, whatever it makes of it; `CandidateEnded` if it ends its process."""
        try:
            for _ in self._answer(self._here(batch), ()):
                pass
        except CandidateEnded:
            raise
        except (CandidateError, CandidateCrash):
            return False
        return True

    def _answer(self, batch: TorchBatch, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """What the candidate yields, each as it comes: it may use the same memory for the next."""
        end: Any = object()
        # Not around the yield: what a generator sets, its consumer would have for as long as it is suspended.
        with at_once():
            stream = pairs(call_candidate(lambda: self.runner(batch)), names)
        while True:
            with at_once():
                item = call_candidate(lambda: next(stream, end))
            if item is end:
                return
            yield item


@lru_cache(maxsize=1)
def _all_weights(checkpoint: IdentityKey[Checkpoint], dtype: str) -> Mapping[str, Array]:
    """All of them at once, since a search reads them again for every batch."""
    return dict(rounded_weights(checkpoint.value, dtype))
