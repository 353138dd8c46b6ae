"""Deprecated names are still accepted for one release."""

from pathlib import Path

import msgspec
import pytest

import conformance
from conformance.checks.known_failures import read
from conformance.faults import BY_NAME
from conformance.implementations import inner_workings
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


@pytest.mark.parametrize(("former", "present"), [("Running", "ModuleRunner"), ("Seen", "OutputMap")])
def test_a_renamed_class_is_available_under_its_former_name(former: str, present: str) -> None:
    with pytest.warns(DeprecationWarning, match=present):
        assert getattr(conformance, former) is getattr(conformance, present)


def test_the_shape_listener_is_available_under_its_former_name() -> None:
    with pytest.warns(DeprecationWarning, match="shape_log"):
        assert inner_workings.telling is inner_workings.shape_log


def test_the_attribute_of_tied_layouts_is_available_under_its_former_name() -> None:
    with pytest.warns(DeprecationWarning, match="is_tied"):
        assert conformance.tied("bert.embeddings.word_embeddings.weight").again is True
