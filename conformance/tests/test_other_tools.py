"""Other tools, given the same questions as the suite: their verdicts, and the table of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.benchmarks.peers.candidates import ACTIVATION, NORM
from conformance.benchmarks.peers.measure import MISSING, PeerVerdict, Row, named, row, verdicts
from conformance.benchmarks.peers.peer import PEERS
from conformance.benchmarks.peers.table import PAGE, SHORT, Table, page, read, short

pytestmark = pytest.mark.thorough  # benchmarks, which no user runs

RIGHT = {
    "repeated": PeerVerdict(None, True),
    "SDPA": PeerVerdict(None, True),
    "epsilon": PeerVerdict(NORM, True),
    "tanh-GELU": PeerVerdict(ACTIVATION, True),
}


@pytest.mark.parametrize("name", ["assert_close", "bert-conformance, full", "bert-conformance, screen"])
def test_tools_without_further_packages_judge_every_run_of_tiny_correctly(name: str) -> None:
    assert verdicts(named(name), "tiny") == RIGHT


def test_a_difference_at_another_place_counts_as_wrong() -> None:
    elsewhere = replace(named("assert_close"), compare=lambda *_: "pooler")
    found = verdicts(elsewhere, "tiny")
    assert not any(each.right for each in found.values())


def test_a_tool_that_is_not_installed_has_a_row_that_says_so() -> None:
    absent = row(replace(named("TorchLens"), distribution="no-such-distribution"), repeats=1)
    assert (absent.version, absent.reason, absent.ratio) == (None, MISSING, None)
    (line,) = (line for line in page(replace(read(), rows=[absent])) if line.startswith("| TorchLens"))
    assert MISSING in line


def test_the_page_is_generated_from_the_json() -> None:
    assert "\n".join(page(read())) + "\n" == PAGE.read_text("utf-8")


def test_the_page_of_measurements_has_the_short_table() -> None:
    assert "\n".join(short(read())) in (Path(__file__).parents[1] / "MEASUREMENTS.md").read_text("utf-8")


def test_every_tool_has_a_row() -> None:
    assert [found.peer for found in read().rows] == [peer.name for peer in PEERS]
    assert {peer.name for peer in PEERS} >= set(SHORT)


def test_a_failure_is_reported_with_its_reason() -> None:
    failed = Row("a tool", "package", "1.0", "its defaults", reason="failed: ValueError: of another version")
    table = Table("2 cores", 2, "3.11", "2.13", "5.23", [failed])
    assert any("failed: ValueError: of another version" in line for line in page(table))
