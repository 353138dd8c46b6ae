"""The gate: what shows at a fraction of the cost that every element of a large activation passes the exact test.

The exact test, by residual, sigma and bound, and at full depth by the filters of mistakes, is made of a sample of the tokens, or of
the rows of the batch where tokens interact. Of all elements,

- a linear layer, and its gradients, are verified by projections of the residual (below);
- any other step is evaluated, and its residual is compared with a lower bound of sigma (`Step.least_roundings`). What is within its
  limits in units of this bound is within them in units of sigma.

Where either shows more than rounding, the exact test is made of every element. It alone fails an activation. It is also made where
a mistake explains the sample under an arithmetic by which it fails, and where a filter would be lost: that of a mistake that the
sample cannot tell from rounding, and that every element together could. The z that is expected of a mistake grows as the root of
the number of elements if the sample is typical of them: where half of the elements would tell the mistake, a larger sample is
tested in their place. A mistake that changes no element of the sample is evaluated on every
element: where it changes some by more than their limits, it fails like any other error, and where it changes them by less, its
filter is that of every element (`local_error`). What a pass confirms of a number is what the filter of the sample confirms.

A matrix product is verified by projections of its residual, at a fraction of the cost of computing it again. For Y = X Wᵀ + b with
the residual E = Y − X Wᵀ − b of the candidate, signs ρ and each block B of g features,

    p_iB = Σ_{j∈B} ρ_j e_ij = Σ_{j∈B} ρ_j (y_ij − b_j) − Σ_k x_ik C_kB,     C_kB = Σ_{j∈B} ρ_j w_jk

costs N·I·O/g products in place of N·I·O, and C is computed once for a checkpoint if W is a weight (Freivalds 1977, *Probabilistic
machines can use less running time*; with rounding errors: Ji, Mascagni and Li 2017). With random signs, E p² = Σ ρ² e² whatever the
errors are. |ρ_j| is a power of two near 1/‖w_j‖, so that the errors of all features of a block weigh about alike; such a scaling is
exact.

The errors of a correct candidate are independent between features, with the variance that `oracle.accumulation` derives: that of
the order of summation whose errors are largest. A random order is one of them, and its variance alone projects exactly. With K
inputs,

    Var p ≥ u²/3 · Σ_j ρ_j² (K (y_ij − b_j)²/3 + K T_ij/6) + Σ_j ρ_j² · (rounding of y_ij to storage),   T_ij = Σ_k x_ik² w_jk²

The projections in units of this deviation are therefore no smaller than in units of the exact one, and neither is their root mean
square. They are a gate: an activation is only ever failed by the exact test, which is made of all of it where the gate opens.

A gate that opens for no reason costs time alone, so its false-alarm probability is not that of a verdict: it is `OPENED`. A single
wrong element of s deviations, in the root mean square of its block, adds s/√g to its projection: see `visible_element`.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from conformance.judge import FEATURES, OPENED
from conformance.judge.evidence import Basis, LocalJudgement
from conformance.judge.judged_array import STATISTICS
from conformance.judge.judged_elements import zeroed
from conformance.judge.observation import SMALL, Observation
from conformance.judge.segment import WhenRead, couples_positions
from conformance.judge.threads import on_all_cores
from conformance.model.activation import HIDDEN
from conformance.model.batch import Batch, Ids
from conformance.numerics.arithmetic import Arithmetic, Hypothesis
from conformance.numerics.formats import Array, Captured, Single
from conformance.numerics.memo import once_an_array
from conformance.numerics.thresholds import SEPARABLE_Z, Limits, max_threshold, rms_threshold
from conformance.oracle import Network
from conformance.oracle.equations import EQUATIONS
from conformance.oracle.gradients.products import LinearBackward, LinearGradient
from conformance.oracle.linear import Linear


@dataclass(frozen=True, eq=False)
class Part:
    """A part of an activation.

    Attributes:
        observation: the activation at this part alone; so are the activations that it is computed from.
        rows, positions: for each index of the part's first axis, that of the activation, and its position if it is a token, (N,).
        ends: the indices of the part's first axis at which mistakes are likeliest, such as the first token of each row.
        taken: function that returns an observation at some indices of the first axis.
    """

    observation: Observation
    rows: Ids
    ends: Ids
    taken: Callable[[Observation, Ids], Observation]
    positions: Ids | None = None

    def in_whole(self, local: LocalJudgement, share: float, basis: Basis) -> LocalJudgement:
        """Return a judgement of this part, which is a share of the activation, as that of all: likelihoods are extrapolated."""
        first, *others = local.error.index
        row = int(self.rows[first])
        index = (row, *others) if self.positions is None else (row, int(self.positions[first]), *others[1:])
        error, nll, row_nll = replace(local.error, index=index), local.nll / share, local.row_nll / share
        return replace(local, error=error, nll=nll, row_nll=row_nll, rests_on=basis)

    def at(self, numbers: Ids) -> "Part":
        """Return the part of this part with these indices of its first axis."""
        positions = None if self.positions is None else self.positions[numbers]
        return Part(self.taken(self.observation, numbers), self.rows[numbers], np.arange(0), self.taken, positions)


def rows_of(observation: Observation) -> Part:
    """Return an activation as the rows of its batch; the ends have most tokens beside padding, and most token types, if any."""
    batch = observation.network.batch
    tokens, types = batch.mask.sum(1), batch.types.sum(1)
    beside_padding = (tokens + batch.length * ((tokens > 0) & (tokens < batch.length))).argmax()
    ends = np.unique([beside_padding, types.argmax()] if types.any() else [beside_padding])
    return Part(_reading(observation, ("batch",)), np.arange(batch.size), ends, _with_rows)


def judged_tokens(observation: Observation) -> Part | None:
    """Return the judged tokens of an activation as a batch of sequences of one token, in which padding costs nothing.

    None is returned if the tokens of a row interact, or are too few for that to pay.
    """
    table, batch = observation.network.table, observation.network.batch
    if observation.on_device or observation.network.kept or observation.actual.size <= SMALL:
        return None
    rows = [*observation.steps, *(table[parent] for step in observation.steps for parent in step.parents)]
    if any(row.axes[:2] != HIDDEN[:2] for row in rows) or any(step.layer is None for step in observation.steps):
        return None
    if couples_positions(step.kind for step in observation.steps):
        return None
    row, position = np.argwhere(batch.mask).T
    every = row.size == batch.mask.size

    def tokens(array: Captured) -> Captured:
        return array.reshape(-1, 1, array.shape[-1]) if every else array[row, position][:, None]

    network = _with_batch(observation.network, Batch(np.zeros((row.size, 1), np.int64)))
    first = np.flatnonzero(np.diff(row, prepend=-1))
    ends = np.unique(np.concatenate([first, first - 1]) % len(row))
    return Part(_cut(_reading(observation, HIDDEN[:2]), network, tokens), row, ends, _with_rows, position)


def features_of_gradient(observation: Observation) -> Part | None:
    """Return the gradient of a linear layer's weight as its rows, one for each feature of the layer; None for other activations."""
    if len(observation.steps) > 1 or EQUATIONS[observation.activation.kind] is not LinearGradient:
        return None
    return Part(observation, np.arange(len(observation.actual)), np.array([0, len(observation.actual) - 1]), _with_features)


def _with_rows(observation: Observation, numbers: Ids) -> Observation:
    network = _with_batch(observation.network, observation.network.batch.cut(numbers))
    return _cut(observation, network, lambda array: array[numbers])


def _with_heads(observation: Observation, count: int) -> Observation:
    """Return an observation of attention at its first heads alone."""
    size = observation.network.architecture.head_size
    return _cut(observation, observation.network, lambda x: x[:, :count] if x.ndim == 4 else x[..., : count * size])


def _with_features(observation: Observation, numbers: Ids) -> Observation:
    of_result, inputs = observation.activation.parents
    captured = {of_result: observation.captured[of_result][..., numbers], inputs: observation.captured[inputs]}
    return replace(observation, actual=observation.actual[numbers], captured=captured)


def _reading(observation: Observation, axes: tuple[str, ...]) -> Observation:
    """Return an observation with those captured activations alone whose first axes are these."""
    table = observation.network.table
    captured = {name: array for name, array in observation.captured.items() if table[name].axes[: len(axes)] == axes}
    return replace(observation, captured=captured)


def _with_batch(network: Network, batch: Batch) -> Network:
    other = replace(network, batch=batch)
    other.__dict__["table"] = network.table
    return other


def _cut(observation: Observation, network: Network, cut: Callable[[Captured], Captured]) -> Observation:
    before = observation.captured
    captured = WhenRead(before, lambda name: cut(before[name]))
    return replace(observation, network=network, actual=cut(observation.actual), captured=captured)


ROWS = 64  # number of rows whose arrays, in float64, stay in a processor's cache


@dataclass(frozen=True)
class ProjectedFactor:
    """The factor W (O, I) of a product X Wᵀ, projected on blocks of features.

    Attributes:
        signs: ρ, (O,).
        product: C, (I, O/g).
        squares: Σ_{j∈B} ρ_j² w_jk², (I, O/g).
    """

    signs: Array
    product: Array
    squares: Single


def _projected(factor: Array) -> ProjectedFactor | None:
    """Return a projected factor; None if it has no blocks of `FEATURES` rows, or a row of zeros, which no power of two scales."""
    outputs, inputs = factor.shape
    norms = np.sqrt(np.square(factor).sum(1))
    if outputs % FEATURES or not (norms > 0.0).all():
        return None
    signs = np.random.default_rng(outputs * inputs).choice((-1.0, 1.0), outputs) * np.exp2(-np.rint(np.log2(norms)))
    scaled = (factor * signs[:, None]).reshape(-1, FEATURES, inputs)
    return ProjectedFactor(signs, scaled.sum(1).T.copy(), np.square(scaled).sum(1).T.astype(np.float32))


def _transposed(weight: Array) -> ProjectedFactor | None:
    return _projected(weight.T)


_of_weight, _of_transposed = once_an_array(_projected), once_an_array(_transposed)


class ObservedProduct(NamedTuple):
    """A product Y = X Wᵀ + b as a candidate computed it: X (N, I) and Y (N, O), the projected W, and b (O,)."""

    left: Captured
    result: Captured
    factor: ProjectedFactor
    bias: Array | float = 0.0


def product_of(observation: Observation) -> ObservedProduct | None:
    """Return the product that an activation is if it is a linear layer, or a gradient of one, in a single step; else None.

    These are Y = X Wᵀ + b, ∂L/∂X = w W and ∂L/∂W = wᵀ X, with w = ∂L/∂Y.
    """
    equation, captured = EQUATIONS[observation.activation.kind], observation.captured
    if len(observation.steps) > 1 or equation not in (Linear, LinearBackward, LinearGradient):
        return None
    left, *others = (captured[parent].reshape(-1, captured[parent].shape[-1]) for parent in observation.activation.parents)
    parameters = observation.network.site(observation.name).parameters
    bias: Array | float = 0.0
    if equation is Linear:
        factor, bias = _of_weight(parameters["weight"]), parameters.get("bias", 0.0)
    elif equation is LinearBackward:
        factor = _of_transposed(parameters["weight"])
    else:
        left, factor = left.T, _projected(others[0].astype(np.float64).T)
    result = observation.actual.reshape(-1, observation.actual.shape[-1])
    return None if factor is None else ObservedProduct(left, result, factor, bias)


def is_verified(product: ObservedProduct, arithmetic: Arithmetic) -> bool:
    """Return whether the projections of a product's residual are within what a correct candidate makes in these formats."""
    with np.errstate(all="ignore"):
        projected = np.concatenate(list(_in_sigma(product, arithmetic)))
        rms, largest = float(np.sqrt(np.mean(np.square(projected)))), float(np.abs(projected).max())
    return rms <= rms_threshold(len(projected), OPENED) and largest <= max_threshold(projected.size, OPENED)  # NaN is not within


def _in_sigma(product: ObservedProduct, arithmetic: Arithmetic) -> Iterator[Array]:
    """Yield the projections (n, O/g) of blocks of rows, in deviations; NaN where a deviation is not finite."""
    factor, inputs = product.factor, product.left.shape[1]
    floor = arithmetic.storage.floor_variance * np.square(factor.signs).reshape(-1, FEATURES).sum(-1)
    for start in range(0, len(product.left), ROWS):
        left, result = (a[start : start + ROWS].astype(np.float64) for a in (product.left, product.result))
        stored = arithmetic.storage_rounding_variance(result)
        result -= product.bias
        result *= factor.signs
        blocks = result.reshape(len(result), -1, FEATURES)
        terms = np.square(left).astype(np.float32) @ factor.squares
        squares = np.einsum("nbg,nbg->nb", blocks, blocks)
        variance = arithmetic.accumulate.unit_roundoff**2 / 3.0 * inputs * (squares / 3.0 + terms / 6.0)
        if isinstance(stored, np.ndarray):
            variance += (stored * np.square(factor.signs)).reshape(blocks.shape).sum(-1)
        np.maximum(variance, floor, out=variance)
        projected = blocks.sum(-1)
        projected -= left @ factor.product
        yield np.where(np.isfinite(variance), projected / np.sqrt(variance), np.nan)


SAMPLED = 32  # one token in so many, or one row of the batch, is tested exactly; it limits the work and is no threshold
ATTENTION = frozenset({"scores", "probs", "copy", "context"})  # kinds of steps by which each head is computed from its own features
# How many times as many rows a larger sample has as it needs if all tell as much; it limits the work and is no threshold, since a
# sample that loses a mistake is never enough. z² is a sum over rows: these suffice if they tell half as much as the sample's.
ROOM = 2.0


def judged_by_gate(
    observation: Observation,
    hypotheses: Sequence[Hypothesis],
    alpha: float,
    judged: Callable[[Observation], Sequence[LocalJudgement]],
    *,
    by_head: bool = False,
) -> tuple[LocalJudgement, ...]:
    """Return the judgement of a sample under each hypothesis; none if every element is to be tested exactly.

    Args:
        observation: the activation.
        hypotheses: the hypotheses. Those under which the sample passes are shown to hold for every element.
        alpha: total false-alarm probability of the activation.
        judged: the exact test, under each hypothesis that is needed; empty if the activation fails.
        by_head: whether the sample may have some heads of attention alone: where no mistake has a filter.
    """
    if not can_be_gated(observation):
        return ()
    part = judged_tokens(observation) or features_of_gradient(observation) or rows_of(observation)
    sample = sample_of(part, math.ceil(len(part.rows) / SAMPLED))
    if len(sample.rows) == len(part.rows):
        return ()
    if by_head and len(observation.steps) > 1 and all(step.kind in ATTENTION for step in observation.steps):
        heads = math.ceil(observation.heads * len(part.rows) / (SAMPLED * len(sample.rows)))
        sample = replace(sample, observation=_with_heads(sample.observation, heads))
    of_sample = judged(sample.observation)
    if len(sample.rows) < (needed := rows_that_tell(of_sample, sample, part)) <= len(part.rows) / 2:
        sample = sample_of(part, needed)
        of_sample = judged(sample.observation)
    by_name = {str(hypothesis): hypothesis for hypothesis in hypotheses}
    passing = {by_name[local.hypothesis]: local for local in of_sample if local.passes and local.hypothesis in by_name}
    if len(passing) < sum(local.passes for local in of_sample) or not passing:  # one passes operation by operation, or none does
        return ()
    if any(local.explanations for local in of_sample) or rows_that_tell(of_sample, sample, part) > len(sample.rows):
        return ()
    if product := product_of(part.observation):
        is_closed = is_verified(product, next(iter(passing)).arithmetic)  # by its formats, which are those of every hypothesis
    else:
        is_closed = are_within_limits(part, sample, passing, alpha)
    basis: Basis = "projections" if product else "a lower bound of sigma"
    share = sample.observation.actual.size / part.observation.actual.size
    return tuple(sample.in_whole(local, share, basis) for local in of_sample) if is_closed else ()


def rows_that_tell(of_sample: Sequence[LocalJudgement], sample: Part, part: Part) -> int:
    """Return how many rows tell each mistake from rounding that all rows of `part` would tell: those of the sample if these do."""
    sampled, every = len(sample.rows), len(part.rows)
    untold = [each.expected_z for local in of_sample for each in local.filters if not each.separable]
    shares = (sampled * (SEPARABLE_Z / z) ** 2 for z in untold if z >= SEPARABLE_Z * math.sqrt(sampled / every))
    return math.ceil(max((ROOM * rows for rows in shares), default=sampled))


def can_be_gated(observation: Observation) -> bool:
    """Return whether an activation is large, in memory, without dropout masks, and computed row by row, of the batch or its own."""
    if observation.actual.size <= SMALL or observation.on_device or observation.network.kept:
        return False
    return observation.is_by_row or features_of_gradient(observation) is not None


def sample_of(part: Part, count: int) -> Part:
    """Return the ends of a part and, at random, the same in every run, as many others as are left of `count`."""
    drawn = np.random.default_rng(zlib.crc32(part.observation.name.encode())).permutation(len(part.rows))
    return part.at(np.unique(np.concatenate([part.ends, drawn[: max(count - len(part.ends), 0)]])))


def are_within_limits(part: Part, sample: Part, of_sample: Mapping[Hypothesis, LocalJudgement], alpha: float) -> bool:
    """Return whether every element is within the limits of the exact test in units of a lower bound of sigma.

    Args:
        part: the activation, which is no product.
        sample: the part of it that passes the exact test; blocks that are in it are not evaluated again.
        of_sample: its judgement under each hypothesis under which that is to hold; a block is evaluated once for all of them.
        alpha: total false-alarm probability of the activation.
    """
    observation, hypotheses = part.observation, list(of_sample)
    tested = sample.observation
    is_whole = part.positions is None and tested.actual.shape[1:] == observation.actual.shape[1:]
    by_row = is_whole and len(observation.rows) == len(part.rows)
    blocks = [rows for rows in observation.rows if not (by_row and rows.start in sample.rows)]

    def totals(rows: slice) -> tuple[int, list[tuple[float, float]]]:
        block = observation.without_padding(rows)
        size, every, found = block.actual - block.segment.value, bool(block.judged.all()), []
        np.abs(size, out=size)
        for number, hypothesis in enumerate(hypotheses, 1):
            variance, bound = block.segment.least_noise(hypothesis)
            squares = size if number == len(hypotheses) else size.copy()  # as many passes take longer as the equation itself
            if np.any(bound):
                squares -= bound
                np.maximum(squares, 0.0, out=squares)
            with np.errstate(over="ignore"):
                squares *= squares
                squares /= variance
            if not every:
                squares[~block.judged] = 0.0
            found.append((float(squares.sum()), float(squares.max(initial=0.0))))
        # Elements that are 0, in both where they must be, are not counted by the exact test.
        return int(np.count_nonzero(zeroed(block.actual, block.judged))), found

    counts, found = zip(*on_all_cores(totals, blocks), strict=True)
    count = sum(counts) + (int(np.count_nonzero(tested.judged & (tested.actual != 0.0))) if by_row else 0)
    for hypothesis, of_blocks in zip(hypotheses, zip(*found, strict=True), strict=True):
        limits = Limits.of(observation.independent_rows(hypothesis), observation.count, STATISTICS, alpha)
        sums, largest = zip(*of_blocks, strict=True)
        squares = sum(sums) + ((of_sample[hypothesis].error.rms or 0.0) ** 2 * tested.count if by_row else 0.0)
        if not (squares <= max(count, 1) * limits.rms**2 and max(largest) <= limits.max**2):  # NaN is not within
            return False
    return True
