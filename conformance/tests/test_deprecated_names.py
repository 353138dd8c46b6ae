"""Former names of faults are still read."""

from pathlib import Path

import msgspec
import pytest

from conformance.checks.known_failures import read
from conformance.faults import BY_NAME
from conformance.names import RENAMED_FAULTS
from conformance.results.records import FaultRecord


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
