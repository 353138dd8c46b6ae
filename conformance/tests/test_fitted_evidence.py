"""Evidence of fitted faults: which parameters differ is stated as far as the error shows it, and a name needs evidence."""

import pytest

from conformance import check
from conformance.benchmarks.detection.blind.fifth import MISTAKES
from conformance.judge import explanation_search
from conformance.report.finding_sentences import findings_of

pytestmark = pytest.mark.usefixtures("one_thread")


def test_rows_of_a_table_that_differ_by_less_than_a_rounding_are_counted_and_the_bias_is_not_blamed() -> None:
    (found,) = findings_of(check(MISTAKES["word table of Q8_0"], "tiny", dtype="bfloat16"))
    assert found.name == "parameters-other"
    assert "word_embeddings.weight, all 49 rows that the batch reads" in found.evidence
    assert "word_embeddings.weight, at least " in found.evidence
    assert "bias" not in found.evidence


def test_a_fit_whose_effect_is_not_significant_gives_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation_search, "_searched", lambda *_: ())
    found = findings_of(check(MISTAKES["keys in a cache of bytes"], "tiny", dtype="bfloat16"))
    assert [one.name for one in found] == [None, None]


def test_a_least_value_of_exp_at_masked_keys_does_not_hide_its_approximation() -> None:
    (found,) = findings_of(check(MISTAKES["exp of I-BERT"], "tiny"))
    assert found.name == "exp-approximated"
    assert "off by up to 0.0019" in found.sentence
