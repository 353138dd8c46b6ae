"""Settling the hypotheses: a candidate computes every step of one kind in one arithmetic.

Which one is decided by all activations of the kind together, by least misfit (`Local.misfit`), so that one faulty step cannot
buy itself a wider sigma that none of its like needs. Whether a step consumed its parents rounded or not may differ from place to
place; it passes if either fits.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from conformance.judge.evidence import Local, Verdict


def settle(judged: Iterable[tuple[Verdict, tuple[Local, ...]]]) -> list[Verdict]:
    """Every verdict under the arithmetic that fits its kind of step best; of equal ones, the tightest."""
    judged = list(judged)
    misfits: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for verdict, locals_ in judged:
        for arithmetic, cheapest in _by_arithmetic(locals_).items():
            misfits[verdict.kind][arithmetic] += cheapest
    chosen = {kind: min(costs, key=lambda a: costs[a]) for kind, costs in misfits.items()}
    return [_under(v, _best(ls, chosen.get(v.kind, "exact"))) if ls else v for v, ls in judged]


def _by_arithmetic(locals_: tuple[Local, ...]) -> dict[str, float]:
    """The least misfit under each arithmetic; an exact step has no say."""
    costs: dict[str, float] = {}
    for local in locals_:
        if local.arithmetic != "exact":
            costs[local.arithmetic] = min(local.misfit, costs.get(local.arithmetic, local.misfit))
    return costs


def _best(locals_: tuple[Local, ...], arithmetic: str) -> Local:
    """The judgement under `arithmetic`: with parents as captured if that passes, else unrounded."""
    fitting = [local for local in locals_ if local.arithmetic == arithmetic] or list(locals_)
    return next((local for local in fitting if local.passes), fitting[0])


def _under(verdict: Verdict, local: Local) -> Verdict:
    if not local.passes:
        return replace(verdict, local=local, outcome="fail", role="origin")
    if verdict.reason:  # broken in a way that no arithmetic excuses
        return replace(verdict, local=local)
    role = None if verdict.role == "origin" else verdict.role
    return replace(verdict, local=local, outcome="pass", role=role)
