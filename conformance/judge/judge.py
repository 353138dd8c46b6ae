"""The judge: consumes a stream of (activation name, array) and says of each activation whether a correct BERT could have made it.

It holds no module and no framework. Local: each activation against what the oracle computes from the candidate's own captured
parents. Global: against the oracle's forward pass from the token ids. Memory does not grow with depth: once a layer's output
has arrived, everything before it is judged and let go.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.activations import Activation, outputs
from conformance.errors import CandidateError
from conformance.judge.anatomy import anatomy, sentences
from conformance.judge.evidence import UNKNOWN, Error, Local, Verdict
from conformance.judge.local import exactly, locally, measured
from conformance.judge.precheck import accepted_array, known
from conformance.judge.reference import reference
from conformance.judge.segment import Segment
from conformance.judge.selection import Mask, independent_rows, judged_elements
from conformance.judge.statistics import rms_threshold, share
from conformance.numerics.accuracy import Accuracy
from conformance.numerics.arithmetic import hypotheses, modular
from conformance.numerics.formats import Array, Format
from conformance.oracle import Network

ANATOMIES = 8  # what nothing explains is looked at so often; each costs some hundred passes over the activation
_NONE_JUDGED = "no element of it is judged: a sentence is read off its first token, and every first token is padding"


class Judge:
    """Judges one candidate on one network.

    Args:
        network: the oracle's, with weights rounded to what the candidate holds.
        dtype, device: what the candidate was asked for.
        recorded: whether the stream was computed there and brought here since, as a trace is.
        runs: how many such judgements the run makes; its false-alarm probability is shared among them.
        stored: true activations to use for the global error instead of computing them.
        functions: the accuracy of library functions where the candidate ran; the table's, if not given.
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
        functions: Accuracy | None = None,
    ) -> None:
        """Share the run's false-alarm probability among all activations, and start the reference."""
        self._network, self._dtype, self._device = network, dtype, "cpu" if recorded else device
        self._hypotheses = hypotheses(dtype, device, functions)
        self._alpha = share(len(network.table) * runs)
        self._reference = reference(network, modular(dtype, device, functions).arithmetic, stored)
        self.order: Mapping[str, int] = {name: i for i, name in enumerate(network.table)}
        self._values: dict[str, Array] = {}
        self._global_errors: dict[str, Array] = {}
        self._waiting: set[str] = set()
        self._seen: set[str] = set()
        self._judged_up_to = -1
        self._dissected = 0

    @property
    def outputs(self) -> tuple[str, ...]:
        """The activations of which a candidate must expose at least one."""
        return tuple(name for name in outputs(self._network.architecture) if name in self.order)

    def judge(self, stream: Iterable[tuple[str, Any]]) -> Iterator[tuple[Verdict, tuple[Local, ...]]]:
        """A verdict an activation, with the local judgement under every hypothesis (`settle` picks one a kind of step).

        What breaks the contract fails alone: the stream goes on, and later steps are judged from what else was exposed.
        """
        broken = 0
        for name, value in stream:
            try:
                row = known(name, self._network.table)
                self._refuse_repeated(name)
                self._values[name] = accepted_array(
                    row, value, self._network.architecture, self._network.batch, self._dtype, self._device
                )
            except CandidateError as error:
                broken += 1
                if broken > len(self.order):
                    raise CandidateError(f"gives no end of activations that are wrong, the last: {error}") from error
                yield self._refused(name, str(error)), ()
                continue
            self._seen.add(name)
            self._waiting.add(name)
            if _separates(row):
                yield from self._flush(self.order[name])
        yield from self._flush(len(self.order) - 1)

    def _refused(self, name: Any, reason: str) -> Verdict:
        """What breaks the contract, under a name that can be printed."""
        told = name.encode("utf-8", "backslashreplace").decode() if isinstance(name, str) else repr(type(name))
        kind = UNKNOWN
        if told in self.order:
            self._seen.add(told)
            kind = self._network.table[told].kind
        return Verdict(told, kind, "fail", "origin", reason=reason)

    def _refuse_repeated(self, name: str) -> None:
        if name in self._seen:
            raise CandidateError("yielded twice")
        if self.order[name] <= self._judged_up_to:
            raise CandidateError("arrived after the output of its layer; yield activations in the order of computation")

    def _flush(self, last: int) -> Iterator[tuple[Verdict, tuple[Local, ...]]]:
        """Judge everything up to table index `last`, then let go of all but that last activation."""
        for name in list(self.order)[self._judged_up_to + 1 : last + 1]:
            reference_name, truth, sigma = next(self._reference)
            assert reference_name == name
            if name in self._waiting:
                yield self._verdict(name, truth, sigma)
            elif name not in self._seen:
                yield Verdict(name, self._network.table[name].kind, "not_observed"), ()
        self._judged_up_to = last
        for name in [n for n in self._values if self.order[n] < last]:
            del self._values[name]
            self._global_errors.pop(name, None)
        self._waiting = {n for n in self._waiting if self.order[n] > last}

    def _verdict(self, name: str, truth: Array, global_sigma: Array) -> tuple[Verdict, tuple[Local, ...]]:
        row, value = self._network.table[name], self._values[name]
        judged = judged_elements(row, self._network.batch, value.shape)
        # The activation itself must not stand among its own ancestors.
        parents = {n: v for n, v in self._values.items() if self.order[n] < self.order[name]}
        segment = Segment(self._network, name, parents)
        residual = value - segment.value
        self._global_errors[name] = np.where(judged, value - truth, 0.0)
        if not judged.any():
            return Verdict(name, row.kind, "not_observed", reason=_NONE_JUDGED), ()
        overall = _global_error(self._global_errors[name], global_sigma)
        padded = float(np.abs(np.where(judged, 0.0, residual)).max(initial=0.0))
        storage = self._hypotheses[0].arithmetic.storage
        reason = _masked_entries(row, value, self._network, storage.smallest_normal)
        broken = bool(reason)
        locals_: tuple[Local, ...]
        if _is_exact(row, segment):
            locals_ = (exactly(self._network, segment, value, judged, storage, self._alpha),)
            reason = reason or _exact_reason(residual, judged, storage, segment.value)
        else:
            locals_ = locally(self._network, segment, value, judged, self._hypotheses, self._alpha)
        passes = any(local.passes for local in locals_) and not broken
        role = self._role(row, segment, judged) if passes else "origin"
        verdict = Verdict(name, row.kind, "pass" if passes else "fail", role, locals_[0], overall, padded, reason)
        return (verdict if passes else replace(verdict, anatomy=self._anatomy(segment, value, judged, locals_))), locals_

    def _anatomy(self, segment: Segment, made: Array, judged: Mask, locals_: Sequence[Local]) -> tuple[str, ...]:
        """What can be said of what nothing explains; only of the first few, since one mistake may break all that follows."""
        if self._dissected == ANATOMIES or any(local.named for local in locals_):
            return ()
        self._dissected += 1
        hypothesis, limits = self._hypotheses[0], (locals_[0].rms_threshold, locals_[0].max_threshold)
        sigma = np.sqrt(segment.propagate(segment.leaf_variance(hypothesis), hypothesis))
        return sentences(anatomy(segment.steps[segment.name], made, sigma, segment.bound(hypothesis), judged, limits))

    def _role(self, row: Activation, segment: Segment, judged: Mask) -> str | None:
        """Whether the arriving global error grew or shrank beyond what propagating it, taken as random, predicts.

        Only where an error beyond rounding arrives; both tails at the χ²_ν Chernoff bound of `rms_threshold`.
        """
        arriving = {n: self._global_errors[n] ** 2 for n in segment.leaves if n in self._global_errors}
        if not any(e.any() for e in arriving.values()):
            return None
        hypothesis = self._hypotheses[0]
        predicted = np.where(judged, segment.propagate(arriving, hypothesis), 0.0).sum()
        made = (self._global_errors[row.name] ** 2).sum()
        local = np.where(judged, segment.propagate({}, hypothesis), 0.0).sum()
        batch, heads = self._network.batch, self._network.architecture.num_attention_heads
        limit = rms_threshold(independent_rows(row, batch, heads, coupled=segment.couples_positions), self._alpha) ** 2
        if max(made, predicted) <= limit * local or predicted == 0.0:
            return None  # indistinguishable from this step's own rounding
        if made > limit * predicted:
            return "amplifier"
        return "attenuator" if made * limit < predicted else None


def _separates(row: Activation) -> bool:
    """Whether everything later depends on what came before through this activation alone: a layer's output."""
    return row.layer is not None and row.name == f"encoder.layer.{row.layer}.output.LayerNorm"


def _is_exact(row: Activation, segment: Segment) -> bool:
    """Exact only when nothing hidden was computed on the way: a copy of a hidden norm is judged as the norm."""
    return all(step.site.activation.exact for step in segment.steps.values()) and row.exact


def _global_error(error: Array, sigma: Array) -> Error | None:
    wide = np.broadcast_to(sigma, error.shape)
    if not wide.any():
        return measured(None, error)
    scaled = np.divide(error, wide, out=np.zeros_like(error), where=wide > 0)
    return measured(scaled, error)


def _exact_reason(residual: Array, judged: Mask, storage: Format, truth: Array) -> str:
    """How an exact activation differs, or an empty text."""
    ulps = np.where(judged, np.abs(residual) / storage.ulp(truth), 0.0)
    if not ulps.any():
        return ""
    return f"{int((ulps > 0).sum())} of {int(judged.sum())} elements differ, by up to {ulps.max():.3g} ULP, where none may"


def _masked_entries(row: Activation, value: Array, network: Network, smallest_normal: float) -> str:
    """Why masked attention probabilities are wrong, or an empty text: they must be 0, or below the smallest normal number."""
    if row.kind != "probs":
        return ""
    mask = network.batch.mask
    masked = np.broadcast_to(mask[:, None, :, None] & ~mask[:, None, None, :], value.shape)
    leak = np.where(masked, np.abs(value), 0.0)
    if leak.max(initial=0.0) < smallest_normal:
        return ""
    return f"masked keys get probability, up to {leak.max():.3g}, where they must get none"
