"""The judge, which decides for each activation in a stream whether a correct BERT could have produced it.

The judge holds no module and no framework: it reads a stream of (activation name, array) pairs. The local error compares each
activation with the oracle's result from the candidate's own captured parents; the global error compares it with the oracle's
forward pass from the token ids. Memory does not grow with depth: once a layer's output has arrived, everything before it is judged
and released, unless there is a backward pass, which reads the activations of the forward pass again.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from conformance.errors import CandidateError, NotFiniteError
from conformance.judge import SCREENED, Depth
from conformance.judge.evidence import UNKNOWN, LocalJudgement, Verdict
from conformance.judge.failing_activation import UnexposedLayers, judge_exact_steps
from conformance.judge.further_batches import judge_weights
from conformance.judge.global_error import GlobalError, accumulated_sigma, error_role, global_error
from conformance.judge.layer_order import ComputedAfterError, require_before
from conformance.judge.local_error import judge_locally
from conformance.judge.looked_up_rows import LookedUpRows
from conformance.judge.observation import SMALL, Observation
from conformance.judge.requirements import (
    accepted_array,
    difference_from_exact,
    is_overflow_of_inputs,
    mask_that_explains,
    row_of,
    violation,
)
from conformance.judge.residual_description import Residual, describe_residual, narrower_format
from conformance.judge.segment import Segment
from conformance.judge.threads import products_on_one_thread
from conformance.model.activation import STATES_NAME, Activation
from conformance.model.activations import is_layer_output, outputs
from conformance.model.training import GIVEN
from conformance.numerics.arithmetic import hypotheses, representative_hypothesis
from conformance.numerics.devices import judging_device
from conformance.numerics.formats import Array, Captured, Format, Single
from conformance.numerics.function_error_bounds import FunctionErrorBounds
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import ErrorLimits, sidak_share
from conformance.oracle import Network

Result = TypeVar("Result")

IN_MEMORY = "memory"
FOLLOWED = 8  # the global error is followed in one row in so many; it limits the work, and no verdict depends on it
MOST_DESCRIBED = 8  # how many unexplained residuals are described; each costs some hundred passes over the activation
# Four arrays (B, S, H) in float64, whatever the number of layers.
_HELD = frozenset({"embeddings.dropout", *(f"encoder.layer.0.attention.self.{n}" for n in ("query", "key", "value"))})
_GIVEN = "not judged: the steps that follow are judged from it"
_UNDEFINED = "not judged: the batch does not define it, since its labels are all ignored or one of them depends on padding"
_NONE_JUDGED = "no element of it is judged: every token is padding"
_NO_FIRST_TOKEN = "no element of it is judged: a sentence is read off its first token, and every first token is padding"


class Judge:
    """The judge of one candidate on one network.

    Args:
        network: the oracle's network, with weights rounded to the candidate's format.
        dtype: the data type that the candidate was asked for.
        device: the device that the candidate was asked for.
        recorded: whether the stream was computed on that device and copied here since, as a trace is.
        runs: number of such judgements in the run; its false-alarm probability is shared among them.
        stored: true activations to use for the global error instead of computing them.
        functions: error bounds of the library functions where the candidate ran; by default those of the table.
        depth: `screen` leaves out the filters, the global error and the names of faults.
        sigma: accumulated rounding error at each activation (`global_error.accumulated_sigma`); sampled by default.
        reasons_by_activation: given a false-alarm probability, returns by activation name, in words, what is wrong with an
            activation whatever its values are.
        unexposed_layers: search for mistakes in the layers that a candidate does not expose; without it, only the activation's
            own layer is searched.
        weights_of: names of linear layers; if given, only they are judged, by their own step, and explained by their weights alone
            (`judge.further_batches`).
        on: torch device on which the judgement is computed, `IN_MEMORY` for NumPy; by default `devices.judging_device`.
    """

    def __init__(
        self,
        network: Network,
        dtype: str,
        device: str = "cpu",
        runs: int = 1,
        stored: Mapping[str, Array] | None = None,
        *,
        recorded: bool = False,
        functions: FunctionErrorBounds | None = None,
        depth: Depth = "full",
        sigma: Iterable[tuple[str, Array]] | None = None,
        reasons_by_activation: Callable[[float], Mapping[str, str]] = lambda alpha: {},
        unexposed_layers: UnexposedLayers | None = None,
        weights_of: Collection[str] | None = None,
        on: str | None = None,
    ) -> None:
        """Share the run's false-alarm probability among all activations, and start the accumulation of sigma."""
        self._dtype, self._device = dtype, "cpu" if recorded else device
        self._on = judging_device(self._device) if on is None else None if on == IN_MEMORY else on
        self._network = network
        self._hypotheses = hypotheses(dtype, device, functions)
        self._alpha = sidak_share(tests_of(network) * runs)
        self._reasons = reasons_by_activation(self._alpha)
        self._unexposed_layers = unexposed_layers
        self._weights_of = weights_of
        self._known: set[str] = set()  # names of the faults that explained an activation so far
        self._stored = stored or {}
        self._depth: Depth = depth
        self._sigma = iter(sigma or accumulated_sigma(network, representative_hypothesis(dtype, device, functions).arithmetic))
        self.order: Mapping[str, int] = {name: i for i, name in enumerate(network.table)}
        self._values: dict[str, Captured] = {}
        self._global_errors: dict[str, Single] = {}
        self._waiting: set[str] = set()  # activations that have arrived and are still to be judged
        self._seen: set[str] = set()  # activations that have arrived, valid or not
        self._not_finite: dict[str, NotFiniteError] = {}  # for each activation that has arrived and is not finite
        # For each activation that is not finite, or has such an ancestor, the first of them.
        self._not_finite_cause: dict[str, str] = {}
        self._judged_up_to = -1
        self._described = 0
        self._failed = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the activations of which a candidate must expose at least one."""
        return tuple(name for name in outputs(self._network.architecture) if name in self.order)

    def judge(self, stream: Iterable[tuple[str, Any]]) -> Iterator[tuple[Verdict, tuple[LocalJudgement, ...]]]:
        """Yield a verdict for each activation, with its local judgement under every hypothesis.

        `select_arithmetic` later selects one hypothesis for each kind of step. A violation of the contract fails its activation
        only: the stream continues, and later steps are judged from the other exposed activations. An activation computed from one
        that is not finite is not judged, since its inputs are already wrong.

        Args:
            stream: the candidate's activations, (name, array), in the order of computation.

        Raises:
            CandidateError: the stream has more invalid activations than the network has activations.
        """
        broken = 0
        for name, value in stream:
            if self._is_undefined_loss(name):
                self._seen.add(name)
                yield Verdict(name, UNKNOWN, "not_observed", reason=_UNDEFINED), ()
                continue
            try:
                row = row_of(name, self._network.table, self._network.architecture)
                self._refuse_repeated(name)
                self._values[name] = self._accepted(row, value)
            except NotFiniteError as error:
                self._seen.add(name)
                self._not_finite[name] = error
            except CandidateError as error:
                broken += 1
                if broken > len(self.order):
                    raise CandidateError(f"yields more invalid activations than the network has, the last: {error}") from error
                after = error.layer if isinstance(error, ComputedAfterError) else None
                yield replace(self._refused(name, str(error)), computed_after=after), ()
                continue
            else:
                self._seen.add(name)
                self._waiting.add(name)
            if is_layer_output(row.name):  # all later activations depend on earlier ones through it alone
                yield from self._judge_up_to(self.order[name])
        yield from self._judge_up_to(len(self.order) - 1)

    def _is_undefined_loss(self, name: Any) -> bool:
        """Return whether a name is that of a loss that this batch does not define, which has not arrived before."""
        return isinstance(name, str) and name in self._network.undefined_losses and name not in self._seen

    def _accepted(self, row: Activation, value: Any) -> Captured:
        """Return a copy of an activation, on the judging device unless it is small."""
        a, batch = self._network.architecture, self._network.batch
        size = math.prod(row.shape(batch.size, batch.length, a.num_attention_heads, batch.states_length))
        return self._where_it_fits(
            lambda: accepted_array(row, value, self._network, self._dtype, self._device, self._on if size > SMALL else None)
        )

    def _where_it_fits(self, judged: Callable[[], Result]) -> Result:
        """Return the result of `judged`, computed in memory, like all that follows, if the device has too little memory left."""
        if self._on is None:
            return judged()
        import torch

        from conformance.numerics.torch_array import in_memory

        try:
            return judged()
        except torch.OutOfMemoryError:
            self._on = None
            self.__dict__.pop("_on_device", None)
            for arrays in (self._values, self._global_errors):
                arrays.update({n: in_memory(array) for n, array in arrays.items()})
        return judged()  # after the exception, whose traceback keeps arrays on the device, is released

    @cached_property
    def _on_device(self) -> Network | None:
        """The network on the judging device."""
        return None if self._on is None else self._network.on(self._on)

    def _refused(self, name: Any, reason: str) -> Verdict:
        """Return the verdict on a violation of the contract, under a name that can be printed."""
        rendered = name[:200].encode("utf-8", "backslashreplace").decode() if isinstance(name, str) else repr(type(name))
        kind = UNKNOWN
        if rendered in self.order:
            self._seen.add(rendered)
            kind = self._network.table[rendered].kind
        return Verdict(rendered, kind, "fail", "origin", reason=reason)

    def _refuse_repeated(self, name: str) -> None:
        if name in self._seen:
            raise CandidateError("yielded twice")
        if self.order[name] <= self._judged_up_to:
            require_before(name, list(self.order)[self._judged_up_to])

    def _judge_up_to(self, last: int) -> Iterator[tuple[Verdict, tuple[LocalJudgement, ...]]]:
        """Judge everything up to table index `last`, then release the activations that are no longer needed.

        A layer's own activations are held until the next layer is judged, since some mistakes use them in place of the next
        layer's. Activations with a value for each pair of tokens are released at once, since they are large. The embeddings'
        output, and query, key and values of the first layer, are held to the end for the same reason.
        """
        for name in list(self.order)[self._judged_up_to + 1 : last + 1]:
            with products_on_one_thread():
                sigma = self._sigma_at(name) if self._depth != "screen" and self._weights_of is None else None
                unjudged = self._not_finite_verdict(name)
                waits = name in self._waiting and not unjudged and (self._weights_of is None or name in self._weights_of)
                judged = self._where_it_fits(partial(self._verdict, name, sigma)) if waits else None
            if judged:
                yield judged
            elif unjudged:
                yield unjudged, ()
            elif name not in self._seen and not self._network.table[name].is_internal:
                yield Verdict(name, self._network.table[name].kind, "not_observed"), ()
        before, self._judged_up_to = self._judged_up_to, last
        if self._network.source is None:  # a backward pass reads the activations of the forward pass
            for name in [n for n in self._values if self.order[n] < last and n != STATES_NAME]:  # each layer reads the states
                self._global_errors.pop(name, None)
                if (self.order[name] < before and name not in _HELD) or "query" in self._network.table[name].axes:
                    del self._values[name]
        self._waiting = {n for n in self._waiting if self.order[n] > last}

    def _not_finite_verdict(self, name: str) -> Verdict | None:
        """Return the verdict on an activation that is not finite, or has a parent that is not; None for any other activation."""
        row = self._network.table[name]
        cause = next((self._not_finite_cause[p] for p in row.parents if p in self._not_finite_cause), None)
        if cause is None and name not in self._not_finite:
            return None
        self._not_finite_cause[name] = cause or name
        self._values.pop(name, None)
        if cause is None:
            found = self._not_finite[name]
            if self._failed and is_overflow_of_inputs(self._segment_in_memory(name), found.places, self._storage):
                reason = f"not judged: {found}; the float64 result of the inputs, which are wrong, exceeds {self._dtype} as well"
                return Verdict(name, row.kind, "not_observed", reason=reason, why_unjudged="overflow of wrong inputs")
            reason = f"{found}{mask_that_explains(row, self._network.batch, found.places)}"
            return Verdict(name, row.kind, "fail", "origin", reason=reason)
        if name not in self._seen:
            return Verdict(name, row.kind, "not_observed")
        reason = f"not judged: it is computed from {cause}, which is not finite"
        return Verdict(name, row.kind, "not_observed", reason=reason, why_unjudged="non-finite parent")

    def _segment_in_memory(self, name: str) -> Segment:
        captured = {n: np.asarray(v, np.float64) for n, v in self._values.items() if self.order[n] < self.order[name]}
        return Segment(self._network, name, captured)

    @property
    def _storage(self) -> Format:
        return self._hypotheses[0].arithmetic.storage

    def _sigma_at(self, name: str) -> Array:
        at, sigma = next(self._sigma)
        if at != name:
            raise RuntimeError(f"the sigma of {at} comes next, where that of {name} is needed")
        return sigma

    def _verdict(self, name: str, sigma: Array | None) -> tuple[Verdict, tuple[LocalJudgement, ...]]:
        kind = self._network.table[name].kind
        if kind in GIVEN:
            return self._not_judged(name, self._values[name], _GIVEN)
        observation = self._observation(name)
        if not observation.count:
            why = _NO_FIRST_TOKEN if self._network.batch.mask.any() else _NONE_JUDGED
            return self._not_judged(name, observation.actual, why)
        reason = violation(observation, self._storage.smallest_normal) or self._reasons.get(name, "")
        looked_up = LookedUpRows.of(observation)
        judgements = self._judgements(observation, looked_up)
        followed = None if sigma is None else self._followed(observation, looked_up, sigma)
        if followed:
            self._global_errors[name] = followed.error
        passes = any(local.passes for local in judgements) and not reason
        if observation.is_exact and not passes:
            reason = reason or difference_from_exact(observation.whole, self._storage)
        if not passes:
            self._failed = True
            self._known |= {f.name for local in judgements for e in local.explanations for f in e.faults}
        role = None if passes else "origin"
        if passes and self._failed and followed:  # before any step has failed, no error beyond rounding arrives
            block = observation.block(slice(0, self._rows_followed))
            role = error_role(block, self._global_errors, self._hypotheses[0], self._alpha)
        summary = followed.summary if followed else None
        explained = any(local.passes for local in judgements)  # Then only what must be zero is wrong, or a draw.
        described = () if explained else self._residual_sentences(observation, judgements)
        verdict = Verdict(name, kind, "pass" if passes else "fail", role, judgements[0], summary, reason)
        return replace(verdict, residual_description=described), judgements

    def _not_judged(self, name: str, actual: Captured, reason: str) -> tuple[Verdict, tuple[LocalJudgement, ...]]:
        """Return the verdict on an activation of which no element is judged; its global error counts as 0."""
        followed = self._rows_followed
        shape = actual.shape if followed == self._network.batch.size else (followed, *actual.shape[1:])
        self._global_errors[name] = np.zeros(shape, np.float32)
        return Verdict(name, self._network.table[name].kind, "not_observed", reason=reason), ()

    def _observation(self, name: str) -> Observation:
        """Return the observation of an activation, with the activations before it: it must not be among its own ancestors."""
        captured = {n: v for n, v in self._values.items() if self.order[n] < self.order[name]}
        actual, truth = self._values[name], self._stored.get(name)
        on_device = None if isinstance(actual, np.ndarray) else self._on_device
        return Observation(self._network, name, actual, captured, self._global_errors, truth, on_device)

    def _judgements(self, observation: Observation, looked_up: LookedUpRows | None) -> tuple[LocalJudgement, ...]:
        """Return the local judgement under each hypothesis."""
        if looked_up:
            of_rows = self._judgements(looked_up.observation, None)
            if any(local.passes for local in of_rows):
                return looked_up.in_whole(of_rows)
        if observation.is_exact:
            return (judge_exact_steps(observation, self._hypotheses[0], self._alpha, self._depth),)
        if self._weights_of is not None:
            return (judge_weights(observation, self._hypotheses, self._alpha),)
        return judge_locally(observation, self._hypotheses, self._alpha, self._unexposed_layers, self._known, self._depth)

    def _followed(self, observation: Observation, looked_up: LookedUpRows | None, sigma: Array) -> GlobalError:
        """Return the global error of the rows in which it is followed."""
        if looked_up:
            return looked_up.global_error(sigma)
        return global_error(observation, sigma, self._rows_followed)

    @cached_property
    def _rows_followed(self) -> int:
        """The number of the batch's first rows in which the global error is followed."""
        batch, table = self._network.batch, self._network.table.values()
        is_small = batch.size * batch.length * self._network.architecture.hidden_size <= SMALL
        if is_small or self._depth == "exhaustive" or any(row.axes[:1] != ("batch",) for row in table):
            return batch.size
        return -(-batch.size // FOLLOWED)

    def _residual_sentences(self, observation: Observation, judgements: Sequence[LocalJudgement]) -> tuple[str, ...]:
        """Return sentences that describe a residual without explanation.

        Only the first `MOST_DESCRIBED` are described, since one mistake may break all later activations.
        """
        if self._depth == "screen":
            return (SCREENED,)
        if self._described == MOST_DESCRIBED or any(local.named for local in judgements):
            return ()
        hypothesis, limits = self._hypotheses[0], ErrorLimits(judgements[0].rms_threshold, judgements[0].max_threshold)
        block = observation.in_memory.whole
        segment = block.segment
        sigma = np.sqrt(segment.propagate(segment.leaf_variance(hypothesis), hypothesis))
        residual = Residual(segment.steps[segment.name], block.actual, sigma, segment.bound(hypothesis), block.judged, limits)
        self._described += 1
        narrower = narrower_format(segment, block.actual, block.judged, self._storage, limits.max)
        return (*describe_residual(residual), *narrower)


def tests_of(network: Network) -> int:
    """Return the number of tests that share the false-alarm probability: the activations, plus one for all dropout masks."""
    return len(network.table) + bool(network.kept)
