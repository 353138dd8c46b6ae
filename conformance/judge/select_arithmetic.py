"""Selection of the arithmetic under which each step is judged, by maximum likelihood.

A hypothesis about a step is a pair: an arithmetic, and a mistake or none.

A candidate is assumed to compute every step of one kind, in one part of the network, in one arithmetic. The arithmetic is selected
from all activations of that kind together. Otherwise, a faulty step that matches no known fault could pass under an arithmetic with
a larger sigma, which no other step of its kind needs.

- The cost of an arithmetic for a step is the difference between the step's −ln likelihood (`LocalJudgement.nll`, in nats) under
  this arithmetic and that under the likeliest arithmetic under which the step passes. It is at most ln 2/α, the cost of a failure.
- A step that fails under the arithmetic of its kind, and is explained there by fitted numbers or by several faults, is judged
  under another arithmetic if its explanation there is likelier by more than the evidence threshold, or about as likely and has
  fewer faults, or as many faults that explain other steps of the kind as well. The likelihood includes the cost of fitted numbers
  (`Explanation.cost`). A step that is not explained there is judged under the arithmetic in which a mistake is likelier than no
  explanation, by more than ln r (below).
- A step that fits a sequence of elementary operations, each rounded (`oracle.operations`), passes whatever arithmetic is selected
  for its kind. Such a step needs no larger sigma, so it is evidence against the widest arithmetic, whose cost is ln 2/α for it.
- Between arithmetics of equal cost, the one under which most faults are named is selected, then the tightest.
- The parts of a network (embeddings, encoder, pooler, each head) are often written separately and may differ in arithmetic. A
  kernel may also choose its arithmetic by the width of a row, as torch's log-softmax does; the width is that of the vocabulary in
  one head and two in the other.
- Whether a step consumed its parents rounded or unrounded may differ from step to step; a step passes if either fits.
- One layer of several may be computed in another arithmetic than the others, as a norm written by hand in one of them, by
  operations of which there is no complete list. A step that fails under the arithmetic of its kind is judged under the likeliest
  arithmetic under which it passes,
  - if only a filter fails, provided that this arithmetic is likelier, or, if no mistake explains the failure, not less likely by
    the cost of a failure. A real mistake, combined with the roundings of the kind's own arithmetic, would make an arithmetic with a
    larger sigma less likely. The likelihood is the product of that of the elements and that of the rows' projections on the mistake
    (`row_nlls`): only the latter shows an error that is shared by a row. Rows of nearly the same variance, as in a
    network with initial weights, may share it too: their inverse roots round to the same number, which no mistake explains.
  - if the residual is too large as well, provided that no mistake explains it under any arithmetic, and that the arithmetic is
    likelier by more than the cost of a failure.

  The disadvantage is that a mistake that matches no known fault and is within the roundings of a wider arithmetic may pass.

The arithmetic of a step of a backward pass is selected for that step alone, from all batches and losses together. The operations
that autograd derives from a step depend on how the step is written, which may differ from layer to layer. Moreover, a backward step
that is a chain of operations has no short list of orders of operations by which it could pass independently of its kind, unlike the
forward step. The disadvantage is that a mistake that matches no known fault and is within the roundings of a wider arithmetic
passes, although other steps of its kind would have revealed it. A known fault is still detected.

A step that passes under the selected arithmetic is faulty nevertheless if a mistake under another arithmetic explains it better: if
the likelihood of that pair is more than r times as large, where ln r is the sum of ln 2/α, ln of the number of hypotheses and the
cost of fitted numbers (`Explanation.cost_of_parameters`). If there is no mistake, the likelihood ratio of a given mistake exceeds r
with a probability of at most 1/r by Markov's inequality, since its mean is 1. (A likelihood that counts fewer independent elements
than there are is a power below 1 of it, whose mean is at most 1 by Jensen's inequality.) α is the share of one statistic, and each
mistake is one statistic. Hence a mistake in every layer cannot hide under a sigma that is far too large. An explanation is accepted
if the remaining residual passes as that of a correct step would (`judge.explanation_search`).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from conformance.judge.evidence import BY_OPERATIONS, WIDEST_ARITHMETIC, LocalJudgement, Verdict
from conformance.model.gradients import is_gradient


def select_arithmetic(judged: Iterable[tuple[Verdict, tuple[LocalJudgement, ...]]]) -> list[Verdict]:
    """Return each verdict under the arithmetic that fits its kind of step best.

    Args:
        judged: verdicts, each with its judgements under all hypotheses; without judgements, a verdict is returned unchanged.
    """
    judged = list(judged)
    total: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    named: Counter[tuple[str, str, str]] = Counter()
    for verdict, judgements in judged:
        for arithmetic, cost in _costs(judgements).items():
            total[_group(verdict)][arithmetic] += cost
        named.update({(*_group(verdict), local.arithmetic) for local in judgements if local.named})
    chosen = {
        group: min(costs, key=lambda a, g=group, c=costs: (c[a], -named[(*g, a)], a == WIDEST_ARITHMETIC))  # type: ignore[misc]
        for group, costs in total.items()
    }
    arithmetics = [chosen.get(_group(verdict), "exact") for verdict, _ in judged]
    found = [_best(ls, arithmetic) if ls else None for (_, ls), arithmetic in zip(judged, arithmetics, strict=True)]
    names = Counter((v.kind, fault.name) for (v, _), local in zip(judged, found, strict=True) if local for fault in local.named)
    repeated = frozenset(key for key, count in names.items() if count > 1)
    return [
        _with_local(v, _best(ls, arithmetic, {name for kind, name in repeated if kind == v.kind})) if ls else v
        for (v, ls), arithmetic in zip(judged, arithmetics, strict=True)
    ]


def _group(verdict: Verdict) -> tuple[str, str]:
    """Return the kind of step and the part of the network that share one arithmetic.

    The part is the first component of the activation's name, or the first two for a head under `cls`. For a gradient it is the
    whole name, since the arithmetic of a gradient is selected for that gradient alone.
    """
    if is_gradient(verdict.activation):
        return verdict.kind, verdict.activation
    part, *rest = verdict.activation.split(".")
    return verdict.kind, f"{part}.{rest[0]}" if part == "cls" else part


def _costs(judgements: tuple[LocalJudgement, ...]) -> dict[str, float]:
    """Return the cost of each arithmetic, tightest first; an exact step contributes no costs."""
    by_hand = next((local for local in judgements if local.arithmetic == BY_OPERATIONS and local.passes), None)
    if by_hand:
        return {WIDEST_ARITHMETIC: by_hand.evidence_threshold}
    considered = [local for local in judgements if local.arithmetic not in ("exact", BY_OPERATIONS)]
    least = min((local.nll for local in considered if local.passes), default=0.0)
    costs: dict[str, float] = {}
    for local in considered:
        cost = min(local.nll - least, local.evidence_threshold) if local.passes else local.evidence_threshold
        costs[local.arithmetic] = min(cost, costs.get(local.arithmetic, cost))
    return costs


def _best(judgements: tuple[LocalJudgement, ...], arithmetic: str, familiar: Collection[str] = ()) -> LocalJudgement:
    """Return the judgement under `arithmetic`, or the one in which a mistake explains the step better.

    Of the judgements with parents as captured and with parents unrounded, the first that passes is used, else the first that names
    a fault. If that fails, a judgement that passes may be used (`_in_another_arithmetic`).
    """
    fitting = [local for local in judgements if local.arithmetic == arithmetic] or list(judgements)
    best = min(fitting, key=lambda local: (not local.passes, not local.named))
    if not best.passes:
        best = _in_another_arithmetic(best, judgements)
    if not best.passes:
        return _with_simplest_explanation(best, judgements, familiar)
    mistaken = [local for local in judgements if local.named]
    likeliest = min(mistaken, key=lambda local: _nll(local, len(judgements)), default=best)
    return likeliest if _nll(likeliest, len(judgements)) < best.nll else best


def _in_another_arithmetic(failing: LocalJudgement, judgements: Sequence[LocalJudgement]) -> LocalJudgement:
    """Return the likeliest judgement that passes if it is likelier than `failing`, else `failing`.

    If no mistake explains the failure, the cost of a failure, ln 2/α, is added to −ln of the likelihood of `failing` if only a
    filter fails, and subtracted from it otherwise. A failure that is not of a filter alone, and that a mistake explains, remains.
    """
    is_explained = any(local.named for local in judgements)
    if is_explained and not failing.fails_by_filters_alone:
        return failing
    cost = 0.0 if is_explained else failing.evidence_threshold if failing.fails_by_filters_alone else -failing.evidence_threshold
    passing = [local for local in judgements if local.passes]
    rows = 1.0 if failing.fails_by_filters_alone else 0.0  # else the likelihood of its rows is not known
    return min((failing, *passing), key=lambda local: local.nll + rows * local.row_nll + (0.0 if local.passes else cost))


def _with_simplest_explanation(
    failing: LocalJudgement, judgements: Sequence[LocalJudgement], familiar: Collection[str]
) -> LocalJudgement:
    """Return the judgement whose explanation has the fewest faults, of those about as likely as the likeliest.

    A step may be computed in another arithmetic than its kind if the mistake changes the shapes of its arrays. Under that of its
    kind, the right explanation then leaves more than rounding, which a second fault or a fit with many numbers may hide. Of
    explanations with equally many faults, those are preferred whose faults explain several steps of the kind (`familiar`), then
    `failing`, then the likeliest; the likelihood includes the cost of fitted numbers. A judgement with a single fault without a
    fitted number is returned as it is. A judgement without an explanation is returned unless an explanation under another
    arithmetic is likelier than no mistake: a mistake may be written as operations that each round.
    """
    named = [local for local in judgements if local.named]
    if not failing.named:
        return min((failing, *named), key=lambda local: _nll(local, len(judgements)))
    if len(_fault_names(failing)) == 1 and not failing.explanations[0].free:
        return failing
    most = min(local.explanations[0].cost for local in named) + failing.evidence_threshold
    alike = [local for local in named if local.explanations[0].cost < most]

    def rank(local: LocalJudgement) -> tuple[int, bool, bool, float]:
        faults = _fault_names(local)
        return len(faults), not faults <= set(familiar), local is not failing, local.explanations[0].cost

    return min(alike, key=rank)


def _fault_names(local: LocalJudgement) -> set[str]:
    return {fault.name for fault in local.named}


def _nll(local: LocalJudgement, hypotheses: int) -> float:
    """Return −ln of the likelihood with the mistake that explains the step best, plus the mistake's cost.

    Without explanations, −ln of the likelihood without a mistake is returned.
    """
    if not local.explanations:
        return local.nll
    return min(e.nll + e.cost_of_parameters for e in local.explanations) + local.evidence_threshold + math.log(hypotheses)


def _with_local(verdict: Verdict, local: LocalJudgement) -> Verdict:
    if not local.passes:
        return replace(verdict, local=local, outcome="fail", role="origin")
    if verdict.reason:  # The verdict has a reason that holds under every arithmetic.
        return replace(verdict, local=local)
    role = None if verdict.role == "origin" else verdict.role
    return replace(verdict, local=local, outcome="pass", role=role, residual_description=())
