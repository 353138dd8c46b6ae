"""A test of the mean and variance of the LayerNorm results of the embedding and of every residual."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from conformance.candidates.arrays import Stream
from conformance.checks.candidate_device import functions_of
from conformance.checks.check import Request
from conformance.checks.judgement import Judgement
from conformance.checks.passes import Pass, forward_passes, viewed
from conformance.errors import CandidateError, NotApplicable
from conformance.judge.requirements import accepted_array
from conformance.model.batch import Batch
from conformance.numerics.arithmetic import Hypothesis, hypotheses
from conformance.numerics.formats import Array
from conformance.numerics.function_error_bounds import FunctionErrorBounds
from conformance.numerics.thresholds import max_threshold, sidak_share
from conformance.oracle import Network, Step


@Judgement.of(
    "moments",
    proves="mean and variance after the LayerNorm of the embedding and of every residual agree with theory",
    catches="a missing norm; a norm over the wrong axis",
    remedy="Normalize each token over its features, with the checkpoint's layer_norm_eps.",
)
def moments(request: Request) -> Sequence[Pass]:
    """After LayerNorm, z = (y − β)/γ has mean 0 and variance v/(v + ε) over the features of a token.

    There v is the variance of the normalized input (Ba, Kiros and Hinton 2016, equation 4). A candidate's z may deviate by the
    effect of rounding on a mean, which is at most the mean of the elements' standard deviations (reached if all errors have the
    same sign) times the threshold for the number of tests.
    """
    functions = functions_of(request.candidate, request.case.device)
    calls = request.runs * len(request.golden.batches)
    look = partial(watched, dtype=request.case.dtype, device=request.case.device, functions=functions, calls=calls)
    return viewed(forward_passes(request), look)


def watched(network: Network, stream: Stream, *, dtype: str, device: str, functions: FunctionErrorBounds, calls: int = 1) -> Stream:
    """Yield the activations of a stream, and check the means and variances of the norms among them.

    The false-alarm probability is shared among `calls` calls and the norms of each.

    Raises:
        CandidateError: at the first wrong mean or variance.
        NotApplicable: if no norm is exposed.
    """
    norms, legal = _norms(network), hypotheses(dtype, device, functions)
    alpha, seen = sidak_share(calls * len(norms)), 0
    for name, value in stream:
        if name in norms:
            made = accepted_array(network.table[name], value, network, dtype, device)
            _require_moments(name, np.asarray(made, np.float64), norms[name], network.batch, legal, alpha)
            seen += 1
        yield name, value
    if not seen:
        raise NotApplicable(f"none of {', '.join(norms)} is exposed, so there is no mean or variance to be seen")


def _norms(network: Network) -> dict[str, Step]:
    """Return the norms of the embedding and of the residuals, evaluated on the oracle's own values."""
    values: dict[str, Array] = {}
    norms = {}
    for name, value in network.walk():
        values[name] = value
        row = network.table[name]
        if row.kind == "norm" and not name.startswith("cls."):
            norms[name] = network.step(name, *(values[p] for p in row.parents))
    return norms


def _require_moments(name: str, made: Array, step: Step, batch: Batch, legal: Sequence[Hypothesis], alpha: float) -> None:
    gamma, beta = step.site.parameters["weight"], step.site.parameters["bias"]
    used = gamma != 0.0
    summed = np.asarray(sum(step.parents[1:], start=step.parents[0]))
    before = summed.var(-1)
    model = next(h.arithmetic for h in legal if h.arithmetic.rounding == "native" or not h.arithmetic.is_mixed)
    sigma = np.sqrt(step.roundings(model).variance())[..., used] / np.abs(gamma[used])
    z = (made - beta)[..., used] / gamma[used]
    threshold = max_threshold(2 * int(batch.mask.sum()), alpha)
    whole = bool(used.all())  # mean and variance are known only for the complete set of features
    tests = (
        ("mean", z.mean(-1), np.zeros(()), threshold * sigma.mean(-1)),
        ("variance", z.var(-1), before / (before + step.site.architecture.layer_norm_eps), _spread(z, sigma, threshold)),
    )
    for what, found, expected, room in tests:
        wrong = (np.abs(found - expected) > room) & batch.mask
        if whole and wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            right = float(np.broadcast_to(expected, found.shape)[index])
            raise CandidateError(
                f"{name}: (y − β)/γ of token {list(index)} has {what} {found[index]:.6g}, expected {right:.6g} ± {room[index]:.2g}"
            )


def _spread(z: Array, sigma: Array, threshold: float) -> Array:
    """Return the largest legal deviation of a variance: the mean of 2 |z| e + e², with e = `threshold` · `sigma`."""
    error = threshold * sigma
    return np.asarray((2.0 * np.abs(z) * error + error**2).mean(-1))
