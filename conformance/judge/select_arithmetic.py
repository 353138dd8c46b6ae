"""Settling the hypotheses: what a candidate computed at a step is a pair, an arithmetic and a mistake or none; evidence decides.

A candidate computes every step of one kind, in one part of the network, in one arithmetic. Which one is decided by all
activations of the kind together, by likelihood, so that one faulty step without a name cannot buy itself a wider sigma that none
of its like needs. An arithmetic costs a step what its residual is less likely under it than under the likeliest that passes
(`Local.nll`), in nats, but no more than what a failure is worth, ln 2/α. A step that is written by hand, its operations
rounded one by one, passes whatever its like do (`oracle.operations`); since it needs no wider sigma, it counts against the
widest. Of equal costs, that under which most faults have a name is taken; then the tightest. The parts, embeddings, encoder,
pooler and each head, are often written apart and may differ; a kernel may choose its arithmetic by the width of a row, as torch's
log-softmax does, which is a vocabulary in one head and two in the other. Whether a step consumed its parents rounded or not may
differ from place to place; it passes if either fits. Where a candidate hides steps, one that is written by hand cannot be judged by
its operations. If what fails under its kind's arithmetic is a filter alone, it is judged under the arithmetic that passes and is
likelier, if any: a mistake beside roundings of the kind's own arithmetic would make a wider sigma less likely.

A step of a backward pass is decided by itself, by all batches and losses together. What autograd makes of a step depends on how the
step is written, which may differ from layer to layer; and of a backward step that is a chain of operations there is no short list
of orders, as there is of the forward one, by which it would pass whatever its like do. The price is a mistake without a name that
is within the roundings of a wider arithmetic: it passes, where its like would have told. One with a name is held against it.

A step that passes under that arithmetic is a mistake nevertheless if a mistake under another explains it better: if the likelihood
of that pair is more than r times as large, with ln r = ln 2/α, and ln of the number of hypotheses, and what fitted numbers cost
(`Explanation.fitting`). Where there is no mistake, a given one's likelihood ratio exceeds r with a probability of at most 1/r
(Markov's inequality: its mean is 1; a likelihood that counts fewer draws than there are is a power below 1 of it, whose mean is at
most 1, by Jensen's inequality); α is one statistic's share, and each mistake is one statistic. So a mistake in every layer cannot
hide under a sigma that is far too wide. An explanation passes as a correct step's residual would (`judge.explain`).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from conformance.judge.evidence import BY_OPERATIONS, WIDEST, Local, Verdict
from conformance.model.gradients import is_gradient


def select_arithmetic(judged: Iterable[tuple[Verdict, tuple[Local, ...]]]) -> list[Verdict]:
    """Every verdict under the arithmetic that fits its kind of step best."""
    judged = list(judged)
    total: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    named: Counter[tuple[str, str, str]] = Counter()
    for verdict, locals_ in judged:
        for arithmetic, cost in _costs(locals_).items():
            total[_group(verdict)][arithmetic] += cost
        named.update({(*_group(verdict), local.arithmetic) for local in locals_ if local.named})
    chosen = {
        group: min(costs, key=lambda a, g=group, c=costs: (c[a], -named[(*g, a)], a == WIDEST))  # type: ignore[misc]
        for group, costs in total.items()
    }
    return [_under(v, _best(ls, chosen.get(_group(v), "exact"))) if ls else v for v, ls in judged]


def _group(verdict: Verdict) -> tuple[str, str]:
    """The kind of step, and the part of the network: the first part of the activation's name, of a head's the first two.

    Of a gradient the whole name: it is decided by itself.
    """
    if is_gradient(verdict.activation):
        return verdict.kind, verdict.activation
    part, *rest = verdict.activation.split(".")
    return verdict.kind, f"{part}.{rest[0]}" if part == "cls" else part


def _costs(locals_: tuple[Local, ...]) -> dict[str, float]:
    """The cost of each arithmetic, the tightest first; an exact step has no say."""
    by_hand = next((local for local in locals_ if local.arithmetic == BY_OPERATIONS and local.passes), None)
    if by_hand:
        return {WIDEST: by_hand.evidence_threshold}
    considered = [local for local in locals_ if local.arithmetic not in ("exact", BY_OPERATIONS)]
    least = min((local.nll for local in considered if local.passes), default=0.0)
    costs: dict[str, float] = {}
    for local in considered:
        cost = min(local.nll - least, local.evidence_threshold) if local.passes else local.evidence_threshold
        costs[local.arithmetic] = min(cost, costs.get(local.arithmetic, cost))
    return costs


def _best(locals_: tuple[Local, ...], arithmetic: str) -> Local:
    """The judgement under `arithmetic`, or that under which a mistake explains the step better.

    Of parents as captured and parents unrounded, the first that passes, else the first that names a fault.
    """
    fitting = [local for local in locals_ if local.arithmetic == arithmetic] or list(locals_)
    best = min(fitting, key=lambda local: (not local.passes, not local.named))
    if best.hides_steps and best.fails_by_filters_alone:
        best = min((best, *(local for local in locals_ if local.passes)), key=lambda local: local.nll)
    if not best.passes:
        return best
    mistaken = [local for local in locals_ if local.named]
    likeliest = min(mistaken, key=lambda local: _nll(local, len(locals_)), default=best)
    return likeliest if _nll(likeliest, len(locals_)) < best.nll else best


def _nll(local: Local, hypotheses: int) -> float:
    """−ln of the likelihood with the mistake that explains the step best, at its cost; of a step that passes with none."""
    if not local.explanations:
        return local.nll
    return min(e.nll + e.fitting for e in local.explanations) + local.evidence_threshold + math.log(hypotheses)


def _under(verdict: Verdict, local: Local) -> Verdict:
    if not local.passes:
        return replace(verdict, local=local, outcome="fail", role="origin")
    if verdict.reason:  # broken in a way that no arithmetic excuses
        return replace(verdict, local=local)
    role = None if verdict.role == "origin" else verdict.role
    return replace(verdict, local=local, outcome="pass", role=role, anatomy=())
