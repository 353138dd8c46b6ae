"""The worker's side: the candidate that it holds, and its answers."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from conformance.candidates.arrays import described
from conformance.candidates.registry import load
from conformance.candidates.stream import pairs
from conformance.checks.session import prepared, refusal
from conformance.errors import CandidateError, ConformanceError
from conformance.isolation.messages import Call, Do, Failure, Head, Load, Next, Prepare, Read, Supports, Traits
from conformance.model.activations import table
from conformance.model.architecture import Architecture
from conformance.model.checkpoint import Checkpoint, LazyWeights
from conformance.numerics.devices import is_lost, require_device
from conformance.numerics.formats import Array
from conformance.results.termination import call_candidate

_PLAIN = (str, int, float, bool, bytes)  # of what is yielded for a name, what can be sent as it is


class CandidateWork:
    """The work of a worker that holds a candidate.

    Args:
        parameter: asks for a parameter of the checkpoint, float64, by its name.
    """

    def __init__(self, parameter: Callable[[str], Array]) -> None:
        """Nothing is imported yet."""
        self._parameter = parameter
        self._candidate: Any = None
        self._runner: Any = None
        self._architecture: Architecture | None = None
        self._device = "cpu"
        self._stream: Iterator[tuple[str, Any]] = iter(())
        self._checkpoints = 0
        self._number, self._last = 0, described(np.empty(0))

    @property
    def is_whole(self) -> bool:
        """Whether the device still works."""
        return not is_lost(self._device)

    def answer(self, question: object) -> object:
        """The answer, or the `Failure` that takes its place."""
        try:
            return self._answered(question)
        except ConformanceError as error:
            return Failure.of(error)

    def _answered(self, question: object) -> object:
        match question:
            case Load(name):
                return self._loaded(name)
            case Do(function):
                return function()
            case Supports(architecture, device, dtype, unobserved):
                return refusal(self._form(unobserved=unobserved), architecture, device, dtype)
            case Prepare():
                self._prepare(question)
                return None
            case Call(batch):
                self._number = 0
                self._stream = call_candidate(lambda: pairs(self._runner(batch.on(self._device)), self._order()))
                return None
            case Next():
                return self._next()
            case Read(number):
                assert number == self._number, "it is gone: a candidate may use the memory of an activation again"
                return self._last.read()
        raise TypeError(f"no question: {question!r}")

    def _loaded(self, name: str) -> Traits:
        self._candidate = load(name)
        path = call_candidate(lambda: getattr(self._candidate, "known_failures", None))
        return Traits(self._form(unobserved=True) is not self._candidate, None if path is None else str(path))

    def _form(self, *, unobserved: bool) -> Any:
        """The candidate as it is looked into, or its attribute `unobserved` if it has one."""
        return call_candidate(lambda: getattr(self._candidate, "unobserved", self._candidate)) if unobserved else self._candidate

    def _prepare(self, question: Prepare) -> None:
        require_device(question.device)
        self._checkpoints += 1
        read = partial(self._parameter_of, self._checkpoints)
        checkpoint = Checkpoint(question.architecture, LazyWeights(question.parameters, read))
        self._runner = None  # its memory is free before another is prepared
        self._runner = prepared(self._form(unobserved=question.unobserved), checkpoint, question.device, question.dtype)
        self._architecture, self._device = question.architecture, question.device

    def _parameter_of(self, checkpoint: int, name: str) -> Array:
        if checkpoint != self._checkpoints:
            raise RuntimeError(
                "a checkpoint's weights are read in prepare() or in calls of its runner; another one has been prepared"
            )
        return self._parameter(name)

    def _order(self) -> dict[str, int]:
        assert self._architecture is not None
        return {name: i for i, name in enumerate(table(self._architecture))}

    def _next(self) -> Head | None:
        found = call_candidate(lambda: next(self._stream, None))
        if found is None:
            return None
        name, value = found
        self._number += 1
        named = name if type(name) in _PLAIN else repr(type(name))
        try:
            self._last = last = described(value)
        except CandidateError as error:
            return Head(self._number, named, unreadable=str(error))
        return Head(self._number, named, last.dtype, last.shape, last.device)
