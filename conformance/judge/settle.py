"""Settling the hypotheses: what a candidate computed at a step is a pair, an arithmetic and a mistake or none; evidence decides.

A pair costs a step what the residual is less likely under it than under the likeliest pair, −ln of the likelihood ratio, in nats,
but no more than what a failure is worth, ln 2/α: with more evidence than that against it there is a fault, whatever the arithmetic.
A mistake costs as much more, and ln of the number of hypotheses: if there is none, the likelihood of any one mistake exceeds that
of none r times with a probability of at most 1/r (Markov's inequality, the mean of a likelihood ratio being 1; a likelihood that
counts fewer draws than there are is a power below 1 of it, whose mean is at most 1, by Jensen's). So a mistake under an arithmetic
that it fits is taken before none under one whose sigma is far too wide, and a correct step is taken for a mistake as seldom as any
other statistic fails. That the explanation passes as a correct step's residual would is asked before (`judge.explain`).

A candidate computes every step of one kind, in one part of the network, in one arithmetic: that of least cost in all, so that
one faulty step without a name cannot buy itself a wider sigma that none of its like needs. A step that is written by hand, its
operations rounded one by one, needs no wider sigma (`oracle.operations`), and passes whatever its like do. Of equal costs, that
under which most faults have a name is taken; then the tightest. The parts, embeddings, encoder, pooler and each head, are often
written apart and may differ; a kernel may choose its arithmetic by the width of a row, as torch's log-softmax does, which is a
vocabulary in one head and two in the other. Whether a step consumed its parents rounded or not may differ from place to place; it
passes if either fits.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from conformance.judge.evidence import BY_OPERATIONS, Local, Verdict


def settle(judged: Iterable[tuple[Verdict, tuple[Local, ...]]]) -> list[Verdict]:
    """Every verdict under the arithmetic that fits its kind of step best."""
    judged = list(judged)
    total: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    named: Counter[tuple[str, str, str]] = Counter()
    for verdict, locals_ in judged:
        for arithmetic, cost in _costs(locals_).items():
            total[_group(verdict)][arithmetic] += cost
        named.update({(*_group(verdict), local.arithmetic) for local in locals_ if local.named})
    chosen = {
        group: min(costs, key=lambda a, g=group, c=costs: (c[a], -named[(*g, a)]))  # type: ignore[misc]
        for group, costs in total.items()
    }
    return [_under(v, _best(ls, chosen.get(_group(v), "exact"))) if ls else v for v, ls in judged]


def _group(verdict: Verdict) -> tuple[str, str]:
    """The kind of step, and the part of the network: the first part of the activation's name, of a head's the first two."""
    part, *rest = verdict.activation.split(".")
    return verdict.kind, f"{part}.{rest[0]}" if part == "cls" else part


def _costs(locals_: tuple[Local, ...]) -> dict[str, float]:
    """The cost of each arithmetic with a mistake or none, the tightest first; an exact step, or one by hand, has no say."""
    considered = [local for local in locals_ if local.arithmetic not in ("exact", BY_OPERATIONS)]
    surprises = [_surprise(local, len(considered)) for local in considered]
    least, costs = min(surprises, default=math.inf), dict[str, float]()
    for local, surprise in zip(considered, surprises, strict=True):
        cost = min(surprise - least, local.worth) if math.isfinite(surprise) else local.worth
        costs[local.arithmetic] = min(cost, costs.get(local.arithmetic, cost))
    return costs


def _surprise(local: Local, hypotheses: int) -> float:
    """−ln of the likelihood with no mistake where that passes, else with the one that explains it, at its cost; else infinite."""
    if local.passes:
        return local.surprise
    if not local.explanations:
        return math.inf
    explanation = local.explanations[0]
    return explanation.surprise + local.worth + math.log(hypotheses) + explanation.fitting


def _best(locals_: tuple[Local, ...], arithmetic: str) -> Local:
    """The judgement under `arithmetic`: of parents as captured and unrounded the first that passes, else that names the fault."""
    fitting = [local for local in locals_ if local.arithmetic == arithmetic] or list(locals_)
    return min(fitting, key=lambda local: (not local.passes, not local.named))


def _under(verdict: Verdict, local: Local) -> Verdict:
    if not local.passes:
        return replace(verdict, local=local, outcome="fail", role="origin")
    if verdict.reason:  # broken in a way that no arithmetic excuses
        return replace(verdict, local=local)
    role = None if verdict.role == "origin" else verdict.role
    return replace(verdict, local=local, outcome="pass", role=role, anatomy=())
