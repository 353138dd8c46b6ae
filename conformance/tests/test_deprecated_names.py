"""Deprecated names are still accepted for one release."""

from pathlib import Path

import msgspec
import pytest

from conformance.checks.known_failures import read
from conformance.faults import BY_NAME
from conformance.names import RENAMED_FAULTS
from conformance.results.records import FaultRecord
from implementations import inner_workings


@pytest.mark.parametrize(("former", "present"), RENAMED_FAULTS.items())
def test_a_renamed_fault_is_read_under_its_current_name_in_results_and_known_failures(
    former: str, present: str, tmp_path: Path
) -> None:
    assert former not in BY_NAME
    assert present in BY_NAME
    record = FaultRecord(former, "pooler.dense", 1.0, 30.0, None, None, None)
    assert (
        msgspec.json.decode(msgspec.json.encode(record).replace(present.encode(), former.encode()), type=FaultRecord).name
        == present
    )
    file = tmp_path / "known.toml"
    file.write_text(f'[[known-failure]]\ncheck = "values"\nreason = "r"\nactivation = "*"\nfault = "{former}"\n')
    with pytest.warns(DeprecationWarning, match=present):
        (entry,) = read(file)
    assert entry.fault == present


def test_the_shape_listener_is_available_under_its_former_name() -> None:
    with pytest.warns(DeprecationWarning, match="shape_log"):
        assert inner_workings.telling is inner_workings.shape_log
