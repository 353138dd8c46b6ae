"""The catalogue of faults: every entry is complete, changes what it declares to change, and composes with others."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest

from conformance import load_golden
from conformance.benchmarks.detection.mistakes import ROWS
from conformance.benchmarks.gradients.wrong import WRONG as GRADIENTS
from conformance.benchmarks.training.dropouts import WRONG as DROPOUTS
from conformance.benchmarks.training.loops import WRONG as LOOPS
from conformance.faults import BY_NAME, CATALOGUE, FaultContext
from conformance.faults.changes import Altered
from conformance.faults.fitted import FITTED
from conformance.faults.hints import HINTS, hint
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import FORMATS
from conformance.oracle import Network, Step
from conformance.oracle.equations import EQUATIONS

GOLDEN = load_golden("tiny")
NETWORK = Network(GOLDEN.checkpoint.architecture, rounded_weights(GOLDEN.checkpoint, "float32"), GOLDEN.batches["padded"])
VALUES = dict(NETWORK.walk())
PLACE = FaultContext(NETWORK, VALUES, FORMATS["float32"])


def _step(name: str) -> Step:
    return NETWORK.step(name, *(VALUES[parent] for parent in NETWORK.table[name].parents))


def test_every_fault_is_planted_by_a_table_of_mistakes_or_by_a_test() -> None:
    tables = (GRADIENTS, DROPOUTS, LOOPS)
    planted = {*(name for row in ROWS for name in row.says), *(wrong.named for table in tables for wrong in table.values())}
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    names = {fault.name for fault in (*CATALOGUE, *FITTED)}
    assert sorted(name for name in names - planted if f'"{name}"' not in tests) == []


def test_every_kind_of_step_that_a_fault_acts_on_has_an_equation() -> None:
    assert {(fault.name, kind) for fault in (*CATALOGUE, *FITTED) for kind in fault.kinds - EQUATIONS.keys()} == set()


def test_every_hint_is_for_a_fault_and_every_pattern_for_several() -> None:
    names = {fault.name for fault in (*CATALOGUE, *FITTED)}
    fitting = {name: [fault for fault in names if fnmatchcase(fault, name)] for name in HINTS}
    assert [name for name, found in fitting.items() if len(found) < (2 if "*" in name else 1)] == []


def test_a_word_is_that_of_the_name_or_of_the_longest_pattern_that_it_fits() -> None:
    assert hint("positions-from-zero").repair == HINTS["positions-*"].repair != HINTS["*"].repair
    assert hint("distance-query-missing").repair == HINTS["distance-query-*"].repair != HINTS["distance-*"].repair
    assert hint("gelu-of-magnitude").equation == "y = x/2 · (1 + erf(|x|/√2))"
    assert hint("a name of no fault") == HINTS["*"]


def test_a_source_is_a_thread_a_commit_or_marked_as_constructed() -> None:
    marked = re.compile(r"[\w./-]+#\d+|[0-9a-f]{9,}|constructed|tutorial")
    assert [fault.name for fault in (*CATALOGUE, *FITTED) if not marked.search(fault.source)] == []


def test_a_sentence_has_a_number_where_the_fault_has_one() -> None:
    for fault in CATALOGUE:
        assert fault.sentences.keys() <= fault.kinds
        for text in (fault.sentence, *fault.sentences.values()):
            assert text.format(value="1", right="2")
            assert ("{value}" in text) == (fault.parameter is not None), fault.name


def test_a_fault_changes_no_shape_and_does_not_modify_the_correct_step() -> None:
    for fault in CATALOGUE:
        for name in [name for name, row in NETWORK.table.items() if fault.applies_to(row)][:2]:
            right = _step(name)
            before = right.value.copy()
            faulty = fault.applied(right, PLACE)
            if faulty is not None:
                assert faulty.value.shape == before.shape
                assert np.isfinite(faulty.value).all(), fault.name
            np.testing.assert_array_equal(right.value, before)


def test_a_fault_with_the_correct_parameter_changes_nothing() -> None:
    # These are wrong with the correct number, too.
    exempt = {"epsilon-outside-root", "norm-unbiased-deviation", "gelu-tanh-cubic", "gelu-tanh-outer", "gelu-sigmoid-factor"}
    exempt.add("scores-cosine")
    for fault in CATALOGUE:
        name = next((n for n, row in NETWORK.table.items() if fault.applies_to(row)), None)
        if fault.parameter is not None and name is not None and fault.name not in exempt:
            step = _step(name)
            same = fault.applied(step, PLACE, fault.parameter.right(step))
            assert same is not None
            np.testing.assert_allclose(same.value, step.value, rtol=1e-12, atol=1e-15, err_msg=fault.name)


def test_two_faults_of_one_step_both_take_effect() -> None:
    step = _step("encoder.layer.0.attention.output.LayerNorm")
    once = BY_NAME["residual-doubled"].applied(step, PLACE)
    assert once is not None
    both = BY_NAME["epsilon"].applied(once, PLACE, 1e-3)
    assert both is not None
    x = step.parents[0] + 2.0 * step.parents[1]
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(both.value, normal * step.site.parameters["weight"] + step.site.parameters["bias"], rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("output.LayerNorm", "norm-over-positions", "residual-doubled"),
        ("output.LayerNorm", "norm-over-sequence", "norm-bias-missing"),
        ("output.LayerNorm", "norm-by-halves", "residual-missing"),
        ("output.dense", "activation-late", "bias-missing"),
    ],
)
def test_a_fault_takes_effect_in_another_equation_that_replaces_that_of_the_step(name: str, first: str, second: str) -> None:
    step = _step(f"encoder.layer.0.{name}")
    either = []
    for order in ((first, second), (second, first)):
        one = BY_NAME[order[0]].applied(step, PLACE)
        assert one is not None
        both = BY_NAME[order[1]].applied(one, PLACE)
        assert both is not None
        assert not np.array_equal(both.value, one.value)
        either.append(both.value)
    np.testing.assert_allclose(*either, rtol=1e-9, atol=1e-12)


def test_any_two_faults_of_a_step_compose() -> None:
    arithmetic, seen = hypotheses("float32")[0].arithmetic, set[object]()
    for network in _networks():
        values = dict(network.walk())
        place = FaultContext(network, values, FORMATS["float32"])
        for name, row in network.table.items():
            faults = tuple(fault for fault in CATALOGUE if fault.applies_to(row))
            if (row.kind, faults) in seen:
                continue
            seen.add((row.kind, faults))
            step = network.step(name, *(values[parent] for parent in row.parents))
            for first in filter(None, (fault.applied(step, place) for fault in faults)):
                for second in filter(None, (fault.applied(first, place) for fault in faults)):
                    with np.errstate(all="ignore"):  # A mistake may overflow.
                        np.broadcast_to(second.roundings(arithmetic).variance(), step.value.shape)
    assert len(seen) > 60


def _networks() -> Iterator[Network]:
    """Yield networks, and their backward passes, that together have every kind of step but those of rare architectures."""
    for golden in (GOLDEN, *map(load_golden, ("tanh", "token-heads", "sentence-heads", "regression", "multi-label"))):
        checkpoint = golden.checkpoint
        forward = Network(checkpoint.architecture, checkpoint.weights, next(iter(golden.batches.values())))
        yield from (forward, *forward.backward_passes())


def test_a_rearranged_result_stays_rearranged_when_its_step_is_changed_again() -> None:
    step = _step("encoder.layer.0.attention.self.query")
    doubled = Altered(step, lambda inner: 2.0 * inner.value)
    unbiased = BY_NAME["bias-missing"].applied(doubled, PLACE)
    assert unbiased is not None
    np.testing.assert_allclose(unbiased.value, 2.0 * (step.value - step.site.parameters["bias"]), rtol=1e-9, atol=1e-12)
