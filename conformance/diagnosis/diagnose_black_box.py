"""The diagnosis of a black box: first the correct network, then the sets of faults that explain a failure, in order."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from conformance.diagnosis.black_box import EMBEDDING, BlackBox, Output
from conformance.diagnosis.black_box_case import BlackBoxCase, ranked_trials
from conformance.diagnosis.conclusions import Diagnosis, RankedExplanation, attribution_of, faults_of_inputs
from conformance.diagnosis.detectability import PoolingDetectability, apply_filters
from conformance.diagnosis.input_mistakes import other_inputs, other_order
from conformance.diagnosis.judgement import Agreement, JudgedForward, allowed
from conformance.diagnosis.outputs import OutputTable, resolved
from conformance.diagnosis.pooling import POOLINGS, declared, in_question
from conformance.diagnosis.printed_problem import PrintedTrial, free_parameter_count
from conformance.errors import UsageError
from conformance.goldens.custom_golden import golden_of
from conformance.judge.filters import project
from conformance.judge.search.budget import SearchBudget
from conformance.judge.threads import products_on_one_thread
from conformance.model.activation import SENTENCE
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint, LazyWeights
from conformance.numerics.formats import format_named

MOST_EXPLANATIONS = 8  # maximum number reported


def diagnose(
    checkpoint: Checkpoint,
    batch: Batch,
    outputs: Mapping[str, Any],
    *,
    dtype: str = "float32",
    pooling: str | None = None,
    dimensions: int | None = None,
    words: Sequence[Sequence[str]] | None = None,
    time_limit: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Diagnosis:
    """Judge the outputs of a black box, and find the faults that explain them if the correct network does not.

    Args:
        checkpoint: the checkpoint that the system should have run.
        batch: the inputs.
        outputs: the outputs by name (`last_hidden_state`, `pooler_output`, `embedding`, `logits`, or any activation's): arrays,
            which are exact in their format; nested lists of numbers, as text if their digits count; or `OutputTable`s.
        dtype: the format that the system computes in.
        pooling: the pooling of an embedding; None: the pooling that the checkpoint declares, or any if it declares none.
        dimensions: number of features that embeddings are shortened to before they are normalised; None: if all others are null in
            every row, the number of the first ones, else all.
        words: the token of each id, used to report a missing prefix; ids are used if None.
        time_limit: seconds after which the search ends with the best result so far; the correct network is always judged.
        clock: function that returns the time in seconds.

    Returns:
        The diagnosis.

    Raises:
        UsageError: an output does not fit, the pooling or format is unknown, or the limit is not a positive number.
    """
    budget = SearchBudget(time_limit, clock)
    golden_of("outputs", checkpoint, {"outputs": batch})  # raises for inputs that do not fit the architecture
    given = {name: part if isinstance(part, OutputTable) else OutputTable(_plain(part)) for name, part in outputs.items()}
    found = resolved(given, checkpoint.architecture, batch, format_named(dtype), dimensions)
    pooling = _pooling_of(checkpoint, found, pooling)
    network = _black_box(checkpoint, batch, found, pooling, dtype)
    of_sentences = all(o.name == EMBEDDING or network.table[o.name].axes == SENTENCE for o in found)
    inputs = tuple(other_inputs(batch, words)) if of_sentences else ()  # outputs with one row per token do not fit fewer tokens
    with products_on_one_thread():
        return _diagnosis(BlackBoxCase(checkpoint, network, dtype, pooling, budget, inputs))


def _pooling_of(checkpoint: Checkpoint, found: tuple[Output, ...], asked: str | None) -> str | None:
    """Return the pooling of an embedding: the one asked for, else the checkpoint's, if it declares one.

    Raises:
        UsageError: a pooling is asked for that is unknown or that the network does not have, or without an embedding.
    """
    has_embedding = any(o.name == EMBEDDING for o in found)
    if asked is not None and not has_embedding:
        raise UsageError("a pooling is asked for, and no output is an embedding")
    if asked is not None and asked not in POOLINGS:
        raise UsageError(f"there is no pooling {asked!r}; known are {', '.join(POOLINGS)}")
    if asked is not None and POOLINGS[asked].base == "pooler" and not checkpoint.architecture.pooler:
        raise UsageError(f"the pooling {asked!r} is asked for, and the network has no pooler")
    return asked or (declared(checkpoint.architecture) if has_embedding else None)


def _black_box(checkpoint: Checkpoint, batch: Batch, found: tuple[Output, ...], pooling: str | None, dtype: str) -> BlackBox:
    """Return the black box with the given outputs, its weights rounded to the format when they are read.

    Raises:
        UsageError: the format is unknown, an output needs labels that the batch lacks, or no number can be judged.
    """
    has_embedding = any(o.name == EMBEDDING for o in found)
    rounded = cache(lambda name: format_named(dtype).round(checkpoint.weights[name]))
    network = BlackBox(checkpoint.architecture, LazyWeights(checkpoint.weights, rounded), batch, found, ())
    if has_embedding:
        network = replace(network, poolings=in_question(checkpoint.architecture, batch, pooling, network.features))
    if pooling is not None and POOLINGS[pooling].is_cut_last and network.features is None:
        raise UsageError(f"the pooling {pooling!r} is of shortened embeddings, and these have all features; give their dimensions")
    missing = [o.name for o in found if o.name != EMBEDDING and o.name not in network.table]
    if missing:
        raise UsageError(f"{', '.join(missing)} needs labels, which the inputs do not have")
    if not len(network.reading.actual):
        raise UsageError("no number of the outputs can be judged: all belong to padding")
    return network


def _plain(part: Any) -> Any:
    if isinstance(part, list | tuple):
        return part
    array = np.asarray(part)
    return array if array.dtype.kind == "f" else np.asarray(array, np.float64)


def likeliest_arithmetic(case: BlackBoxCase) -> Agreement:
    """Select the likeliest arithmetic, and return the numbers' agreement with the correct network under it."""
    case.use(case.arithmetics[0])
    agreements = (case.base.agreement(pooling_index, case.base.independent) for pooling_index in case.pooling_indices)
    return min(agreements, key=lambda a: a.nll)


@dataclass(frozen=True)
class _Judged:
    """The judgement of the correct network under one arithmetic.

    Attributes:
        best: the agreement under the likeliest of the good poolings, or of all if none is good.
        good: indices of the poolings under which the numbers conform.
        look: the results of the filters under that pooling; without any if the numbers do not pass.
    """

    best: Agreement
    good: tuple[int, ...]
    look: PoolingDetectability


def _judged(case: BlackBoxCase) -> _Judged:
    """Select the first arithmetic that the numbers fit, or else the likeliest, and return the judgement under it."""
    likeliest = _judged_under(case, case.arithmetics[0])
    if likeliest.good:
        return likeliest
    for base in case.arithmetics[1:]:
        judged = _judged_under(case, base)
        if judged.good:
            return judged
    case.use(case.arithmetics[0])
    return likeliest


def _judged_under(case: BlackBoxCase, base: JudgedForward) -> _Judged:
    """Take an arithmetic for the system's, and return the judgement of the correct network under it."""
    case.use(base)
    agreements = [base.agreement(pooling_index, base.independent) for pooling_index in case.pooling_indices]
    passing = [a.pooling_index for a in agreements if allowed(a, case.limits(a.pooling_index))]
    part = case.part()
    looks = {
        pooling_index: apply_filters(base, part, pooling_index, case.filters, case.limits(pooling_index), case.budget)
        for pooling_index in passing
    }
    good = tuple(pooling_index for pooling_index in passing if not looks[pooling_index].detected)
    best = min((a for a in agreements if not good or a.pooling_index in good), key=lambda a: a.nll)
    return _Judged(best, good, looks.get(best.pooling_index, PoolingDetectability((), (), ())))


def _diagnosis(case: BlackBoxCase) -> Diagnosis:
    """Return the diagnosis: the judgement of the correct network and, if it fails, the explanations."""
    judged = _judged(case)
    best, good, look = judged.best, judged.good, judged.look
    trials = [] if good else _reordered(case, best) or case.trials_to_report(best, look, case.placements)
    limits, reading = case.limits(best.pooling_index), case.network.reading
    printed = reading.units[reading.units > 0.0]
    return Diagnosis(
        conforms=bool(good),
        outputs=reading.names,
        elements=len(reading.actual),
        digits=-math.log10(float(np.median(printed))) if len(printed) else None,
        stored=tuple(dict.fromkeys(o.known.stored for o in case.network.outputs if o.known.stored)),
        dtype=case.dtype,
        arithmetic=case.base.hypothesis.arithmetic.name,
        poolings=tuple(case.pooling(pooling_index) for pooling_index in good if case.network.poolings),
        pooling=case.pooling(best.pooling_index),
        sigma=float(np.median(case.base.sigma[best.pooling_index])),
        rms=best.rms,
        max=best.max,
        rms_limit=limits.rms,
        max_limit=limits.max,
        shown=look.shown if good else (),
        unseen=look.unseen if good else (),
        detected_faults=tuple(name for name, _ in look.detected),
        explanations=tuple(_explanations(case, trials, best)),
        cut_short=case.budget.cut_short,
        unconfirmed=case.network.architecture.unconfirmed,
        undeclared_pooling=bool(case.network.poolings) and len(case.pooling_indices) > 1,
        features=case.network.features,
    )


def _reordered(case: BlackBoxCase, best: Agreement) -> list[PrintedTrial]:
    """Return the trial of the correct network with the rows in another order, if the outputs then conform; else none."""
    order = other_order(case.right, case.pooling_indices)
    if order is None:
        return []
    restored = case.of_outputs(order.restored(case.network.outputs))
    judged = _judged(restored)
    orders = math.lgamma(case.network.batch.size + 1)  # ln of the number of orders, since the best of them is taken
    if not judged.good or judged.best.nll + orders >= best.nll:
        return []
    inputs = order.inputs(case.network.batch)
    return [PrintedTrial(restored.problem.none, True, agreement=judged.best, dtype=case.dtype, inputs=inputs)]


def _explanations(case: BlackBoxCase, trials: Sequence[PrintedTrial], best: Agreement) -> Iterator[RankedExplanation]:
    """Yield the explanations that are reported, in order."""
    for trial, is_tied in ranked_trials(case, trials, best)[:MOST_EXPLANATIONS]:
        yield _explanation(case, trial, best, is_tied)


def _explanation(case: BlackBoxCase, trial: PrintedTrial, best: Agreement, tied: bool) -> RankedExplanation:
    fit, pooling_index = trial.fit, trial.agreement.pooling_index
    z, values = None, case.problem.estimates(fit)
    if fit.placements:
        effect = (case.problem.value(fit.placements) - case.right.value)[pooling_index]
        base = case.base
        found = project(base.residual[pooling_index], effect, base.noise(pooling_index)) if np.isfinite(effect).all() else None
        z = found.z if found else None
    before = float(((case.base.residual[best.pooling_index] / case.base.sigma[best.pooling_index]) ** 2).sum())
    return RankedExplanation(
        (
            *faults_of_inputs(trial.inputs),
            *(attribution_of(s, e, case.network) for s, e in zip(fit.placements, values, strict=True)),
        ),
        case.pooling(pooling_index),
        pooling_index not in case.pooling_indices,
        trial.dtype,
        trial.explains,
        trial.agreement.rms,
        trial.agreement.max,
        z,
        best.nll - trial.agreement.nll,
        1.0 - float(fit.squares[pooling_index]) / before if before else 0.0,
        free_parameter_count(trial.fit),
        tied,
        trial.agreement.nll,
    )
