"""Settling the hypotheses: a candidate computes every step of one kind in one way."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from conformance.judge.evidence import Local, Verdict


def settle(judged: Iterable[tuple[Verdict, tuple[Local, ...]]]) -> list[Verdict]:
    """For each kind of step the hypothesis under which fewest of its activations fail, the tightest of those; verdicts under it."""
    judged = list(judged)
    failures: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for verdict, locals_ in judged:
        for i, local in enumerate(locals_):
            failures[verdict.kind][i] += not local.passes
    chosen = {kind: min(counts, key=lambda i: (counts[i], i)) for kind, counts in failures.items()}
    return [_under(v, ls[min(chosen[v.kind], len(ls) - 1)]) if ls else v for v, ls in judged]


def _under(verdict: Verdict, local: Local) -> Verdict:
    if not local.passes:
        return replace(verdict, local=local, outcome="fail", role="origin")
    if verdict.outcome == "fail" and verdict.reason:
        return replace(verdict, local=local)
    role = None if verdict.role == "origin" else verdict.role
    return replace(verdict, local=local, outcome="pass", role=role)
