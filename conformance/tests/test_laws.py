"""The laws: each one finds its broken candidate with the smallest example, and passes a correct, unusual candidate."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, cast

import numpy as np
import pytest
import torch

from conformance import Checkpoint, golden_of, load_golden
from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.checks.catalogue import CHECKS
from conformance.checks.check import USUAL, Plan, Request
from conformance.checks.known_failures import expected
from conformance.checks.laws import batches
from conformance.checks.laws.batches import generated, padding_length
from conformance.checks.laws.law import Law
from conformance.checks.run_check import run_check
from conformance.checks.search.find import Search
from conformance.checks.search.subject import Subject
from conformance.errors import Unsupported
from conformance.goldens.manifest import DEFAULT_GOLDENS
from conformance.implementations.demystified import demystified
from conformance.implementations.hugging_face import HuggingFace
from conformance.implementations.making_bert import making_bert
from conformance.isolation.remote import answers_in_a_worker
from conformance.model.batch import Batch
from conformance.results.case import KnownFailure
from conformance.results.example import Example, LawBroken, Run
from conformance.tests.lawless import BROKEN, UNUSUAL, Around, counting, refuse

# Of each law, a part of what it says of its broken candidate, and the largest size of the smallest example.
WORDS: dict[str, tuple[str, int, int]] = {
    "generated-batches": ("times what rounding explains", 1, 1),
    "padding-length": ("in the other run", 1, 1),
    "padding-content": ("in the other run", 2, 8),
    "masked-row": ("not finite", 2, 8),
    "batching": ("in the other run", 2, 1),
    "batching-bitwise": ("not the same bits", 2, 8),
    "mask-omitted": ("in the other run", 2, 8),
    "token-types-omitted": ("nothing may differ there", 2, 8),
    "mask-dtype": ("in the other run", 2, 8),
    "repeated": ("not the same bits", 2, 8),
    "called-again": ("not the same bits", 1, 1),
    "dropout-off": ("in training mode", 1, 1),
    "ids-refused": ("is accepted", 1, 1),
    "negative-ids-refused": ("= -1 is accepted", 2, 8),
    "length-refused": ("a length of 33 (the network has 32 positions) is accepted", 2, 8),
    "inputs-untouched": ("writes into its input attention_mask", 2, 2),
    "settings-untouched": ("changes torch's random state", 2, 8),
    "weights-untouched": ("a forward pass changes its own seen", 2, 8),
    "registered-tensors": ("lm_head.kept: neither parameter nor buffer", 2, 8),
    "state-round-trip": ("something that it computes with is not in there", 2, 8),
    "tied-weights": ("are equal and not tied", 2, 8),
    "tokenization": ("expected", 2, 8),
}
LAWS = [name for name, check in CHECKS.items() if check.searches]
TINY = load_golden("tiny").checkpoint.architecture


THIRTY = [name for name, variant in VARIANTS.items() if variant.fits(TINY) and "float32" in variant.dtypes][:30]


def judged(
    check: str, candidate: Any, golden: Any = "tiny", dtype: str = "float32", runs: int = 1, plan: Plan = USUAL, **known: Any
) -> Any:
    return run_check(Request.of(candidate, golden, "cpu", dtype, check, runs=runs, plan=plan, **known))


def test_every_law_has_a_broken_candidate() -> None:
    assert set(BROKEN) == set(WORDS) == set(LAWS)


@pytest.mark.parametrize("name", LAWS)
def test_the_law_catches_its_broken_candidate_and_minimises_the_example(name: str) -> None:
    result = judged(name, BROKEN[name])
    assert result.outcome in ("fail", "crash"), result.reason
    words, rows, tokens = WORDS[name]
    batch = result.counterexample.example.batch
    assert (batch.size <= rows, batch.length <= tokens, words in result.reason) == (True, True, True), result
    assert pickle.loads(pickle.dumps(result)).reason == result.reason  # The law may have been run in another process.


@pytest.mark.landing(
    {"name": ["generated-batches", "padding-length", "batching", "batching-bitwise", "masked-row"]}, dtype="float32"
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", LAWS)
def test_the_law_passes_an_unusual_correct_candidate(name: str, dtype: str) -> None:
    result = judged(name, UNUSUAL.get(name, Candidate(computes="float32")), "tiny", dtype)
    assert result.outcome == "pass", result.reason


TINY = load_golden("tiny").checkpoint.architecture


def test_a_failure_that_does_not_repeat_is_reported_as_such() -> None:
    calls = count(1)

    def third_is_wrong(stream: Any, _: object) -> Any:
        factor = 1.5 if next(calls) == 3 else 1.0
        return ((name, factor * value) for name, value in stream)

    result = judged("repeated", Streaming(third_is_wrong))
    assert (result.outcome, "it depends on what was called before" in result.reason) == ("fail", True)


def test_inputs_that_must_be_refused_can_be_tried_in_a_worker() -> None:
    subject = replace(Subject.prepared(making_bert, load_golden("tiny").checkpoint), name="making-bert")
    assert answers_in_a_worker(subject, Batch.of({"input_ids": [[95]]}))
    assert not answers_in_a_worker(subject, Batch.of({"input_ids": [[96]]}))
    with pytest.raises(Unsupported, match="no module holds it by a name"):
        answers_in_a_worker(replace(subject, candidate=replace(making_bert), name=""), Batch.of({"input_ids": [[95]]}))


def _drawn(law: Law, plan: Plan, boundaries: Any = ()) -> list[Example]:
    """Return the examples that a search for a counterexample draws where there is none."""
    seen = list[Example]()

    def holds(example: Example) -> float:
        seen.append(example)
        return 0.0

    Search().run(holds, law.examples(TINY), plan, boundaries=boundaries)
    return seen


def test_batches_of_every_kind_are_drawn() -> None:
    seen = [example.batch for example in _drawn(generated, Plan(200))]
    assert {1, 2, 3, 4} <= {batch.size for batch in seen}
    assert max(batch.size for batch in seen) > 30  # more rows than any golden has
    assert {1, 31, 32} <= {batch.length for batch in seen} <= set(range(1, 33))
    assert any(batch.attention_mask is None for batch in seen)
    assert any(batch.token_type_ids is None for batch in seen)
    masks = [row for batch in seen if batch.attention_mask is not None for row in batch.attention_mask.tolist()]
    assert all(any(row) for row in masks)
    shapes = {"".join(map(str, row)).strip("1") for row in masks}
    assert any(shape.endswith("0") and "1" not in shape for shape in shapes)
    assert any(row[0] == 0 and row[-1] == 1 for row in masks)
    assert any("1" in shape for shape in shapes)
    assert any(batch.length > 1 and (batch.input_ids[0] == batch.input_ids[0, 0]).all() for batch in seen)
    assert max(int(batch.input_ids.max()) for batch in seen) == TINY.vocab_size - 1


def _set(change: Any) -> Any:
    return Around(before=lambda self, batch: (change(), None)[1])


FURTHER: dict[str, tuple[Any, str, str]] = {
    "default dtype": (_set(lambda: torch.set_default_dtype(torch.float64)), "settings-untouched", "changes the default dtype"),
    "gradient mode": (_set(lambda: torch.set_grad_enabled(False)), "settings-untouched", "changes gradient mode"),
    "NumPy's errors": (_set(lambda: np.seterr(all="raise")), "settings-untouched", "changes NumPy's handling of errors"),
    "eval() on the way": (Around(module=lambda m: m.train(), at_call=lambda m: m.eval()), "weights-untouched",
                          "switches the training mode"),
    "a buffer that is not saved": (Around(module=partial(counting, persistent=False)), "weights-untouched", "changes its own seen"),
    "everything is refused": (Around(before=refuse), "ids-refused", "out of luck"),
    "everything is refused, length": (Around(before=refuse), "length-refused", "out of luck"),
}  # fmt: skip


@pytest.mark.parametrize("name", FURTHER)
def test_a_further_broken_candidate_is_caught(name: str) -> None:
    candidate, check, words = FURTHER[name]
    judged("repeated", candidate, "tiny", "float32", 1, Plan(1))  # The result must not depend on earlier runs.
    result = judged(check, candidate)
    assert result.outcome in ("fail", "crash"), result.reason
    assert words in result.reason
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert np.geterr()["invalid"] == "warn"


class Streaming(HuggingFace):
    """Hugging Face's BERT whose stream of activations is replaced by a function of it and of the batch."""

    def __init__(self, change: Callable[[Any, Any], Any], gradients: bool = True) -> None:
        super().__init__("eager")
        self.change, self.with_gradients = change, gradients

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        runner = super().prepare(checkpoint, device, dtype)
        if not self.with_gradients:
            torch.set_grad_enabled(False)
        return lambda batch: self.change(runner(batch), batch)


def _in_one_memory(stream: Any, _: object) -> Any:
    memory = torch.empty(2**22)
    for name, value in stream:
        memory[: value.numel()] = value.flatten()
        yield name, memory[: value.numel()].view(value.shape)


FURTHER_CORRECT = {
    "arrays, without gradients": (
        Streaming(lambda stream, _: {name: value.detach().numpy() for name, value in stream}, gradients=False),
        ["repeated", "batching", "called-again"],
    ),
    "every activation in the same memory": (Streaming(_in_one_memory), ["generated-batches", "repeated"]),
    "no probabilities where there is no mask": (
        Streaming(lambda stream, batch: ((n, v) for n, v in stream if batch.attention_mask is not None or not n.endswith("probs"))),
        ["mask-omitted", "padding-length"],
    ),
    "a buffer that is not a number": (
        Around(module=lambda m: m.register_buffer("cache", torch.tensor(torch.nan))),
        ["weights-untouched"],
    ),
    "a tensor that is set in a call": (Around(at_call=lambda m: setattr(m, "kept", torch.ones(1))), ["registered-tensors"]),
}


@pytest.mark.parametrize("name", FURTHER_CORRECT)
def test_a_further_correct_candidate_passes(name: str) -> None:
    candidate, checks = FURTHER_CORRECT[name]
    outcomes = {check: judged(check, candidate) for check in checks}
    assert {result.outcome for result in outcomes.values()} == {"pass"}, outcomes


@pytest.mark.landing(dtype="float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_kink_raises_no_alarm(dtype: str) -> None:
    """The input of a ReLU may round to the other side of 0."""
    tiny = load_golden("tiny")
    checkpoint = Checkpoint(tiny.checkpoint.architecture.with_(hidden_act="relu"), tiny.checkpoint.weights)
    golden = golden_of("relu", checkpoint, tiny.batches)
    for seed in (0, 1, 3):
        for law in ("padding-length", "batching"):
            result = judged(law, HuggingFace("sdpa"), golden, dtype, 1, Plan(20, seed))
            assert result.outcome == "pass", result.reason


def test_an_example_is_used_only_on_goldens_that_it_fits_and_must_be_complete() -> None:
    beyond = Example(Batch.of({"input_ids": [[80]]}), {"tokens": 1, "id": 80})
    assert judged("padding-length", demystified, "sinusoidal", examples=[beyond]).outcome == "pass"
    result = judged("padding-length", HuggingFace("eager"), examples=[Example(Batch.of({"input_ids": [[8]]}))])
    assert (result.outcome, result.exit_code, "lacks the variation 'tokens'" in result.reason) == ("error", 2, True)


def test_boundary_cases_are_among_the_examples_of_every_law() -> None:
    for name in [name for name in LAWS if name != "tokenization"]:
        law = CHECKS[name]
        assert isinstance(law, Law)
        seen = _drawn(law, Plan(), law.boundaries(TINY))
        assert len(seen) <= 20, name
        lengths = {example.batch.length for example in seen}
        assert law.once or {1, 7, 8, 9, 15, 16, 17, TINY.longest - law.batches.room} <= lengths, name


def _fails_at(fails: Callable[[int, int], bool], drawn: Callable[[Example], bool] = lambda _: True) -> tuple[int, int]:
    """Return the shape of the smallest example of a search whose result is wrong at some sizes."""

    def holds(example: Example) -> float:
        if fails(*example.batch.input_ids.shape):
            raise LawBroken("wrong at this size")
        return 0.0

    search = Search()
    search.run(holds, generated.examples(TINY).filter(drawn), Plan(), boundaries=generated.boundaries(TINY))
    assert search.example
    return search.example.batch.input_ids.shape  # type: ignore[return-value]  # of two axes


def test_a_failure_at_a_boundary_is_minimised_only_as_far_as_it_stays_at_the_boundary() -> None:
    shape = _fails_at(lambda _, length: length == TINY.longest, lambda example: example.batch.length < TINY.longest)
    assert shape == (1, TINY.longest)


@pytest.mark.parametrize(
    "fails",
    [
        lambda rows, length: rows > 30,
        lambda rows, length: rows > 1000,
        lambda rows, length: rows * length > 2000,
        lambda rows, length: length > 31,
        lambda rows, length: rows == 1,
    ],
    ids=["more than 30 rows", "more than 1000 rows", "more than 2000 tokens", "the longest rows", "one row"],
)
def test_a_result_that_is_wrong_at_some_sizes_alone_fails_at_the_smallest_of_them(fails: Callable[[int, int], bool]) -> None:
    rows, length = _fails_at(fails)
    assert fails(rows, length)
    assert rows == 1 or not fails(rows - 1, length)
    assert length == 1 or not fails(rows, length - 1)


class OtherWeightsAt:
    """Correct but for batches of some sizes, as an engine with fixed buffers is: there, one weight has another factor."""

    def __init__(self, is_wrong: Callable[[int, int], bool]) -> None:
        self._is_wrong = is_wrong

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        name = "bert.encoder.layer.1.intermediate.dense.weight"
        other = {**checkpoint.weights, name: 1.5 * checkpoint.weights[name]}
        right, wrong = (making_bert.prepare(c, device, dtype) for c in (checkpoint, replace(checkpoint, weights=other)))
        return lambda batch: (wrong if self._is_wrong(*batch.input_ids.shape) else right)(batch)


def test_an_engine_that_is_wrong_beyond_its_buffers_fails_and_a_pass_states_how_large_its_batches_were() -> None:
    assert judged("generated-batches", OtherWeightsAt(lambda rows, length: rows * length > 1900)).outcome == "fail"
    passed = judged("generated-batches", OtherWeightsAt(lambda *_: False))
    assert (passed.outcome, "batches of up to 1025 × 2 and" in str(passed), "64 × 32 tokens" in str(passed)) == ("pass", True, True)


def test_examples_depend_only_on_the_seed() -> None:
    first, again, other = ([example.plain() for example in _drawn(padding_length, Plan(10, seed))] for seed in (1, 1, 2))
    assert first == again != other


# A failed law keeps every run that came before the failure, since a candidate may depend on its earlier calls.

BATCH = Batch(np.arange(8).reshape(4, 2), np.zeros((4, 2), np.int64), np.ones((4, 2), np.int64))


def test_the_earlier_parts_of_a_batch_are_among_the_runs_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def require(subject: Any, whole: Run, part: Run, pairs: Any) -> float:
        if part.batch.input_ids[0, 0] == 4:
            raise LawBroken("differs", (whole, part))
        return 0.0

    monkeypatch.setattr(batches, "run_of", lambda subject, batch: Run(batch, {}))
    example = Example(BATCH, {"order": [0, 1, 2, 3], "rows": 1})
    with pytest.raises(LawBroken) as raised:
        batches._compared(cast(Any, None), example, require)
    assert [run.batch.input_ids[:, 0].tolist() for run in raised.value.runs] == [[0, 2, 4, 6], [0], [2], [4]]


def test_batches_at_boundaries_are_larger_than_those_of_every_golden_on_which_each_check_runs() -> None:
    goldens = [batch for golden in (*DEFAULT_GOLDENS, "edges") for batch in load_golden(golden).batches.values()]
    for name in ("tiny", "sinusoidal", "edges"):
        architecture, search = load_golden(name).checkpoint.architecture, Search()
        search.run(lambda _: 0.0, generated.examples(architecture), Plan(), boundaries=generated.boundaries(architecture))
        assert max(rows for rows, _ in search.sizes) > max(batch.size for batch in goldens)
        assert max(length for _, length in search.sizes) == architecture.longest
        assert max(rows * length for rows, length in search.sizes) > max(batch.input_ids.size for batch in goldens)


@pytest.mark.landing(variant=THIRTY[::6])
@pytest.mark.parametrize("law", ["generated-batches", "batching"])
@pytest.mark.parametrize("variant", THIRTY)
def test_no_correct_variant_raises_an_alarm(variant: str, law: str) -> None:
    result = judged(law, VARIANTS[variant])
    assert result.outcome == "pass", result.reason
    assert result.searched
    assert result.searched.tried == 20


def test_a_known_failure_is_strict_only_where_the_examples_are_deterministic() -> None:
    known = [KnownFailure("repeated", "it races")]
    for seed, outcome in ((0, "xpass"), (None, "pass")):
        result = judged("repeated", HuggingFace("eager"), "tiny", "float32", 1, Plan(2, seed))
        assert expected(result, known).outcome == outcome
