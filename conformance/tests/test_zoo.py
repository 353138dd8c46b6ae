"""Misbehaving candidates in one run: each ends in an outcome of its own, and correct ones before and after them conform."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import check
from conformance.results.file import read_results
from conformance.results.records import CheckRecord, Results
from conformance.tests.zoo import ASKED, CALLS, IMPORTS

CONTROL = "hf-sdpa"
ZOO = "conformance.tests.zoo"
NAMES = {
    **{f"{ZOO}:call_{i}": (name, outcome, reason) for i, (name, (_, outcome, reason)) in enumerate(CALLS.items())},
    **{f"{ZOO}:asked_{i}": (name, outcome, reason) for i, (name, (_, outcome, reason)) in enumerate(ASKED.items())},
    **{f"at_import_{i}:candidate": (f"import: {name}", *expected) for i, (name, (_, *expected)) in enumerate(IMPORTS.items())},
}
LIMIT = "4"  # seconds


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Results]:
    """Standard output and results of one run of all of them, from a folder with the modules that misbehave at import."""
    folder = tmp_path_factory.mktemp("zoo")
    for i, (source, _, _) in enumerate(IMPORTS.values()):
        (folder / f"at_import_{i}.py").write_text(f"{source}\n")
    names = [CONTROL, *NAMES, "hf-eager"]
    command = ["run", "--golden", "tiny", "--timeout", LIMIT, "--format", "json", *(x for n in names for x in ("-i", n))]
    done = subprocess.run([sys.executable, "-m", "conformance", *command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr[-2000:]  # a name that does not exist is the caller's, and nobody's failure
    return done.stdout, read_results(folder / "conformance-results" / "results.jsonl")


def _record(results: Results, name: str) -> CheckRecord:
    (found,) = [c for c in results.checks if c.implementation == name]
    return found


@pytest.mark.parametrize("name", NAMES, ids=[what for what, _, _ in NAMES.values()])
def test_a_misbehaving_candidate_ends_in_its_own_outcome(name: str, ran: tuple[str, Results]) -> None:
    _, outcome, reason = NAMES[name]
    found = _record(ran[1], name)
    assert not outcome or found.outcome == outcome, found.reason
    said = found.reason + " ".join(a.reason for case in ran[1].cases if case.check is found for a in case.activations)
    assert reason in said


def test_correct_candidates_before_and_after_them_conform(ran: tuple[str, Results]) -> None:
    assert _record(ran[1], CONTROL).outcome == _record(ran[1], "hf-eager").outcome == "pass"


def test_results_are_complete_and_standard_output_is_one_json_object(ran: tuple[str, Results]) -> None:
    out, results = ran
    assert len(json.loads(out)["cases"]) == len(results.checks) == len(NAMES) + 2
    assert results.sound


def test_sixty_ways_are_tried() -> None:
    assert len(NAMES) >= 55


def test_what_a_candidate_writes_into_its_checkpoint_reaches_no_other_candidate_in_the_same_process() -> None:
    from conformance.tests import zoo

    assert check(ASKED["alters the checkpoint"][0], "tiny").outcome == "pass"
    assert check(zoo.good, "tiny").outcome == "pass"


def test_nothing_that_a_candidate_started_outlives_the_run(ran: tuple[str, Results]) -> None:
    listed = [path for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.name.isdigit()]
    if not listed:
        pytest.skip("no /proc here")
    left = [path for path in listed if ZOO.encode() in _bytes(path)]
    assert left == []


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""
