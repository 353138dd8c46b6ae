"""The checks of pre-training data: each finds its broken pipelines and passes unusual correct ones, in this process and in a
worker."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from conformance import PretrainingConventions, PretrainingCorpus, PretrainingData, load_golden
from conformance.checks.catalogue import CHECKS
from conformance.checks.check import Request
from conformance.checks.run_check import run_check
from conformance.implementations.hugging_face import HuggingFace, hf_eager, tokenized
from conformance.isolation.candidate_work import CandidateWork
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.worker_process import WorkerProcess
from conformance.numerics.thresholds import BinomialCount
from conformance.results.result import Result, Searched
from conformance.tests.broken_pipelines import BROKEN
from conformance.tests.pipelines import CORRECT, RIGHT, in_batches

DATA = [name for name in CHECKS if name.startswith("data-")]


def judged(check: str, candidate: Any) -> Result:
    return run_check(Request.of(candidate, "tiny", "cpu", "float32", check))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_pipeline_is_found_by_the_intended_check(name: str) -> None:
    candidate, check, words = BROKEN[name]
    result = judged(check, candidate)
    assert result.outcome == "fail", result.reason
    assert words in result.reason


@pytest.mark.landing(name=[*CORRECT][::2])
@pytest.mark.parametrize("name", CORRECT)
def test_an_unusual_correct_pipeline_passes_every_check(name: str) -> None:
    outcomes = {check: (result.outcome, result.reason) for check in DATA if (result := judged(check, CORRECT[name]))}
    skipped = {"data-pairs": ("skip", "its rows are no pairs: its batches have no next_sentence_label")}
    assert outcomes == dict.fromkeys(DATA, ("pass", "")) | (skipped if CORRECT[name].pairing.is_single else {})


def test_the_bounds_of_a_binomial_count_leave_at_most_alpha_outside() -> None:
    for trials, probability in ((0, 0.5), (1, 0.5), (300, 0.15), (3323, 0.8), (50, 1.0 / 210.0)):
        low, high = BinomialCount(0, trials, probability).bounds(0.01)
        passed = [k for k in range(trials + 1) if BinomialCount(k, trials, probability).is_chance(0.01)]
        assert passed == list(range(low, high + 1))
        assert binom.cdf(low - 1, trials, probability) + binom.sf(high, trials, probability) <= 0.01


# A worker finds it by its name.
leaking = BROKEN["labels that leak"][0]


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess(CandidateWork) as found:
        yield found


def test_data_is_judged_in_a_worker_as_in_this_process(worker: WorkerProcess) -> None:
    there, here = (judged("data-replacement", each) for each in (RemoteCandidate(worker, f"{__name__}:leaking"), leaking))
    assert (there.outcome, there.reason, there.searched) == (here.outcome, here.reason, here.searched)
    bare = judged("data-layout", RemoteCandidate(worker, "making-bert"))
    assert (bare.outcome, bare.reason.partition(",")[0]) == ("skip", "it has no pre-training data")


@pytest.mark.parametrize(("name", "golden"), [("demystified", "sinusoidal"), ("hf-eager", "tiny")])
def test_the_data_of_the_implementations_are_correct(name: str, golden: str, worker: WorkerProcess) -> None:
    candidate = RemoteCandidate(worker, name)
    outcomes = {check: run_check(Request.of(candidate, golden, "cpu", "float32", check)).outcome for check in DATA}
    assert outcomes == dict.fromkeys(DATA, "pass") | ({"data-pairs": "skip"} if name == "hf-eager" else {})


def _every(change: Any) -> Any:
    """Return a pipeline whose batches are each replaced by a function of them."""
    return replace(RIGHT, batches=lambda rows: (change(batch) for batch in in_batches(rows)))


class OfAnotherKind(HuggingFace):
    pretraining_data = []  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__("eager")


def _some_pairs(rows: Any) -> Any:
    return (replace(batch, next_sentence_label=None) if i else batch for i, batch in enumerate(in_batches(rows)))


WRONG_FORM = {
    "no labels": (_every(lambda b: replace(b, labels=None)), "batch 0 of epoch 0 has no labels, expected masked-LM labels"),
    "rows too long": (_every(lambda b: {k: np.pad(v, ((0, 0), (0, 9))) for k, v in b.arrays().items() if v.ndim == 2}),
                      "batch 0 of epoch 0 has rows of 33 positions, expected 24 at most"),
    "ids beyond the vocabulary": (_every(lambda b: replace(b, input_ids=b.input_ids + 216)), "expected 0 to 215"),
    "fractions": (_every(lambda b: {"input_ids": b.input_ids * 0.5, "labels": b.labels}),
                  "batch 0 of epoch 0: input_ids has float64 values, expected integers"),
    "no batches": (replace(RIGHT, batches=lambda rows: iter(())), "epoch 0 of 2488 utterances has no batches"),
    "pairs in some batches": (replace(RIGHT, batches=_some_pairs), "have a next_sentence_label and others have none"),
    "another thing": (OfAnotherKind(), "pretraining_data is of list, expected a conformance.PretrainingData"),
    "a share of one": (replace(RIGHT, conventions=PretrainingConventions(chosen=1)), "chosen is 1, expected a share"),
    "a label of two": (replace(RIGHT, conventions=PretrainingConventions(next_label=2)), "next_label is 2, expected 0 or 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_FORM)
def test_invalid_data_are_one_error_with_the_place_and_the_expected_value(name: str) -> None:
    candidate, words = WRONG_FORM[name]
    result = judged("data-labels", candidate)
    assert (result.outcome, words in result.reason) == ("fail", True), result.reason


def test_the_rows_used_by_transformers_trainer_are_correct(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")

    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    def epoch_of(corpus: PretrainingCorpus, epoch: int) -> Any:
        tokenizer, rows = tokenized(corpus)
        model = hf_eager.module(load_golden("tiny").checkpoint)["bert"]
        arguments = TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, per_device_train_batch_size=32, seed=epoch)
        collator = DataCollatorForLanguageModeling(tokenizer, seed=epoch)
        return Trainer(model, arguments, collator, rows).get_train_dataloader()

    class ThroughTrainer(HuggingFace):
        pretraining_data = PretrainingData(epoch_of, hf_eager.pretraining_data.conventions)

    candidate = ThroughTrainer("eager")
    assert {judged(check, candidate).outcome for check in DATA if check != "data-pairs"} == {"pass"}


def test_every_check_has_a_broken_pipeline() -> None:
    assert {check for _, check, _ in BROKEN.values()} == set(DATA)


def test_endless_rows_are_read_up_to_the_longest_possible_epoch() -> None:
    endless = replace(RIGHT, batches=lambda rows: (batch for _ in count() for batch in in_batches(rows)))
    result = judged("data-layout", endless)
    assert (result.outcome, result.searched) == ("pass", Searched(2 * 2488))
