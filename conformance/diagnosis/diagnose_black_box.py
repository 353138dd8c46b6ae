"""The diagnosis of a black box: first the correct network, then the sets of faults that explain a failure, in order."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.diagnosis.black_box import BlackBox, Outputs, weights_in
from conformance.diagnosis.conclusions import Diagnosis, Unseen, explanation_of
from conformance.diagnosis.explanations import BlackBoxCase, JudgedCase
from conformance.diagnosis.inputs import other_inputs, other_order
from conformance.diagnosis.outputs import resolved
from conformance.diagnosis.pooling import EMBEDDING, POOLINGS, declared, in_question
from conformance.diagnosis.problem import PrintedTrial
from conformance.diagnosis.tables import OutputTable
from conformance.errors import UsageError
from conformance.goldens.custom_golden import golden_of
from conformance.judge.search.budget import SearchBudget
from conformance.judge.search.problem import FittedFaults
from conformance.judge.threads import products_on_one_thread
from conformance.model.activation import SENTENCE
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint
from conformance.numerics.formats import format_named
from conformance.numerics.thresholds import SEPARABLE_Z

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
        dimensions: number of features that embeddings are shortened to before they are normalised; None: all.
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
    numbers = resolved(given, checkpoint.architecture, batch, format_named(dtype), dimensions)
    network = _black_box(checkpoint, batch, numbers, pooling, dtype)
    of_sentences = all(name == EMBEDDING or network.table[name].axes == SENTENCE for name in numbers)
    inputs = tuple(other_inputs(batch, words)) if of_sentences else ()  # outputs with one row per token do not fit fewer tokens
    with products_on_one_thread():
        return _diagnosis(BlackBoxCase(checkpoint, network, dtype, budget, inputs))


def _plain(part: Any) -> Any:
    if isinstance(part, list | tuple):
        return part
    array = np.asarray(part)
    return array if array.dtype.kind == "f" else np.asarray(array, np.float64)


def _black_box(checkpoint: Checkpoint, batch: Batch, outputs: Outputs, asked: str | None, dtype: str) -> BlackBox:
    """Return the black box with the given outputs, and the pooling that is asked for, or else that the checkpoint declares.

    Raises:
        UsageError: the format is unknown; a pooling is asked for that is unknown, that the network does not have, or without an
            embedding; an output needs labels that the batch lacks; or no number can be judged.
    """
    architecture, weights = checkpoint.architecture, weights_in(checkpoint, format_named(dtype))
    network = BlackBox(architecture, weights, batch, outputs)
    if EMBEDDING in outputs:
        _require_pooling(asked, network)
        declaration = asked or declared(architecture)
        poolings = in_question(architecture, batch, declaration, network.features)
        network = BlackBox(architecture, weights, batch, outputs, poolings, is_declared=declaration is not None)
    elif asked is not None:
        raise UsageError("a pooling is asked for, and no output is an embedding")
    missing = [name for name in outputs if name != EMBEDDING and name not in network.table]
    if missing:
        raise UsageError(f"{', '.join(missing)} needs labels, which the inputs do not have")
    if not len(network.reading.actual):
        raise UsageError("no number of the outputs can be judged: all belong to padding")
    return network


def _require_pooling(asked: str | None, network: BlackBox) -> None:
    if asked is None:
        return
    if asked not in POOLINGS:
        raise UsageError(f"there is no pooling {asked!r}; known are {', '.join(POOLINGS)}")
    if POOLINGS[asked].base == "pooler" and not network.architecture.pooler:
        raise UsageError(f"the pooling {asked!r} is asked for, and the network has no pooler")
    if POOLINGS[asked].is_cut_last and network.features is None:
        raise UsageError(f"the pooling {asked!r} is of shortened embeddings, and these have all features; give their dimensions")


def _diagnosis(case: BlackBoxCase) -> Diagnosis:
    """Return the diagnosis: the judgement of the correct network and, if it fails, the explanations."""
    judged = case.judged()
    best, base, good = judged.best, judged.base, judged.good
    trials = [] if good else _reordered(judged) or judged.trials(case.right.placements)
    ranked = judged.ranked(trials)[:MOST_EXPLANATIONS]
    limits, reading = base.limits(best.pooling_index), case.network.reading
    printed = reading.units[reading.units > 0.0]
    filters = judged.filters if good else ()
    return Diagnosis(
        conforms=bool(good),
        outputs=reading.names,
        elements=len(reading.actual),
        digits=-math.log10(float(np.median(printed))) if len(printed) else None,
        stored=tuple(dict.fromkeys(numbers.stored for numbers in case.network.outputs.values() if numbers.stored)),
        dtype=case.dtype,
        arithmetic=base.hypothesis.arithmetic.name,
        poolings=tuple(case.pooling(index) for index in good if case.network.poolings),
        pooling=case.pooling(best.pooling_index),
        sigma=float(np.median(base.sigma[best.pooling_index])),
        rms=best.rms,
        max=best.max,
        rms_limit=limits.rms,
        max_limit=limits.max,
        shown=tuple(f.name for f in filters if f.expected_z >= SEPARABLE_Z),
        unseen=tuple(Unseen(f.name, f.expected_z) for f in filters if not f.expected_z >= SEPARABLE_Z),
        detected_faults=tuple(f.name for f in judged.filters if f.effect is not None),
        explanations=tuple(explanation_of(judged, trial, tied=tied) for trial, tied in ranked),
        cut_short=case.budget.cut_short,
        unconfirmed=case.network.architecture.unconfirmed,
        undeclared_pooling=bool(case.network.poolings) and len(case.network.right_poolings) > 1,
        features=case.network.features,
    )


def _reordered(judged: JudgedCase) -> list[PrintedTrial]:
    """Return the trial of the correct network with the rows in another order, if the outputs then conform; else none."""
    case = judged.case
    order = other_order(case.right)
    if order is None:
        return []
    restored = replace(case, network=replace(case.network, outputs=order.restored(case.network.outputs)), inputs=()).judged()
    orders = math.lgamma(case.network.batch.size + 1)  # ln of the number of orders, since the best of them is taken
    if not restored.good or restored.best.nll + orders >= judged.best.nll:
        return []
    fit = FittedFaults((), restored.base.squares)
    inputs = order.inputs(case.network.batch)
    return [PrintedTrial(fit, True, agreement=restored.best, dtype=case.dtype, inputs=inputs)]
