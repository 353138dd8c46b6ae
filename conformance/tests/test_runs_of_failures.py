"""A failed law keeps every run that came before the failure, since a candidate may depend on its earlier calls."""

from typing import Any, cast

import numpy as np
import pytest

from conformance.checks.laws import batches
from conformance.model.batch import Batch
from conformance.results.example import Example, LawBroken, Run

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
