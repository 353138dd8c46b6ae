"""Several results files merged into one, and edited ones: what is missing, contradicts or no longer follows is reported."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import main
from conformance.errors import UsageError
from conformance.results.case import Case
from conformance.results.file import Writer, read_results
from conformance.results.merge import RunRecords, merged
from conformance.results.records import GoldenRecord, Results
from conformance.tests.commands import FAILING, Command
from conformance.tests.sample_records import activation, checked, header, run

CASE = Case("bert", "tiny")


def _notes(results: Results) -> list[str]:
    return [str(note) for note in results.notes]


def _of(outcome: Any, source: str = "", **fields: Any) -> RunRecords:
    return run(checked(CASE, outcome), source=source, **fields)


FEW, MANY = (checked(CASE, "fail", tuple(activation(CASE, f"a.{i}", 9.0) for i in range(n))) for n in (1, 2))
WHOLE, CUT = _of("pass", "a.jsonl"), "it was cut short, and has no footer"
ELSEWHERE = run(checked(Case("bert", "tiny", "cuda"), "fail"), torch="2.13.0")
AGAIN = "duplicate: 1 check, with the same outcome each time; counted once"
SKIPPED = "duplicate: 1 check, skipped in one run and not in another; what ran counts"

# Runs, the outcomes after merging, the notes, and whether the results are sound.
MERGED: dict[str, tuple[list[RunRecords], list[str], list[str], bool]] = {
    "one run": ([WHOLE], ["pass"], [], True),
    "two devices": ([_of("pass", torch="2.12.0"), ELSEWHERE], ["pass", "fail"], [], True),
    "the same outcome twice": ([_of("pass"), _of("pass")], ["pass"], [AGAIN], True),
    "a skip and a pass": ([_of("skip"), _of("pass")], ["pass"], [SKIPPED], True),
    "a failure and a skip": ([_of("fail"), _of("skip")], ["fail"], [SKIPPED], True),
    "no end": ([run(checked(CASE), source="a.jsonl", finished=False)], ["pass"], [f"missing: the end of a.jsonl: {CUT}"], False),
    "two failures": ([run(FEW), run(MANY)], ["fail"], [AGAIN], True),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED)
def test_merged_runs_have_their_outcomes_and_notes(name: str) -> None:
    runs, outcomes, notes, sound = MERGED[name]
    results = merged(runs)
    assert ([check.outcome for check in results.checks], _notes(results), results.sound) == (outcomes, notes, sound)
    assert results.headers == tuple(each.header for each in runs)
    assert results.footer == (runs[0].footer if len(runs) == 1 else None)


@pytest.mark.parametrize("outcomes", [("pass", "fail"), ("fail", "pass"), ("xfail", "fail"), ("fail", "fail", "pass")])
def test_of_two_outcomes_the_worse_counts_and_the_result_is_not_a_success(outcomes: tuple[str, ...]) -> None:
    results = merged([_of(outcome, f"{n}.jsonl") for n, outcome in enumerate(outcomes)])
    (note,) = results.notes
    assert ([check.outcome for check in results.checks], note.kind, results.sound) == (["fail"], "contradiction", False)
    assert note.text.endswith("; fail counts")
    assert all(f"{outcome} in " in note.text for outcome in outcomes)


def test_different_versions_of_a_golden_are_refused_with_the_files_that_have_them() -> None:
    other = {"tiny": GoldenRecord(2, "0" * 64, "1" * 64, "generated")}
    with pytest.raises(UsageError, match=r"of the golden tiny: 1 and 2 \(a\.jsonl; b\.jsonl\)"):
        merged([_of("pass", "a.jsonl"), _of("pass", "b.jsonl", goldens=other)])
    digests = {"tiny": GoldenRecord(1, "2" * 64, "1" * 64, "generated")}
    with pytest.raises(UsageError, match="1, with other digests"):
        merged([_of("pass"), _of("pass", goldens=digests)])


def _written(made: RunRecords, path: Path) -> str:
    with Writer(path) as writer:
        writer.write(made.header or header())
        for case in made.cases:
            writer.write(case.check)
        if made.footer:
            writer.write(made.footer)
    return str(path)


def test_report_exits_as_the_runs_did_and_at_least_with_1_where_they_contradict_each_other(
    tmp_path: Path, command: Command
) -> None:
    good, known = (_written(_of(o), tmp_path / f"{o}.jsonl") for o in ("pass", "xfail"))
    for files in ((good,), (good, good)):
        ended = command("report", *files)
        assert (ended.code, "contradiction" in ended.out) == (0, False)
    ended = command("report", good, known)  # Each of them is a success.
    assert (ended.code, ended.out.splitlines()[0]) == (1, "ran 1 of 1: 1 xfail; 1 contradiction")
    assert f"bert on tiny, cpu, float32: pass in {good}, xfail in {known}; xfail counts" in ended.words


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of the results of two candidates, of which the second fails."""
    out = tmp_path_factory.mktemp("whole")
    names = ["making-bert", FAILING]
    assert main(["run", *names, "--golden", "tiny", "--depth", "screen", "--in-process", "-o", str(out)]) == 1
    return (out / "results.jsonl").read_text().splitlines(keepends=True)


def _edit(lines: list[str], kind: str, old: str, new: str, *, among: str = "") -> int:
    """Replace text in every line of a kind with `among` in it; return the number of the first one that it is in, from 1."""
    places = [i for i, line in enumerate(lines) if line.startswith(f'{{"kind":"{kind}"') and among in line and old in line]
    for i in places:
        lines[i] = lines[i].replace(old, new)
    return places[0] + 1


def excused(lines: list[str]) -> int:
    _edit(lines, "footer", '"fail":1', '"xfail":1')
    return _edit(lines, "check", '"outcome":"fail"', '"outcome":"xfail"')


def skipped(lines: list[str]) -> int:
    return _edit(lines, "check", '"outcome":"fail"', '"outcome":"skip"')


def passed(lines: list[str]) -> int:
    _edit(lines, "check", '"outcome":"fail"', '"outcome":"pass"')
    return _edit(lines, "activation", '"outcome":"fail"', '"outcome":"pass"')


def golden_renamed(lines: list[str]) -> int:
    lines[:] = [line.replace('"tiny"', '"wide"') for line in lines]
    return 1


def error_lowered(lines: list[str]) -> int:
    return _edit(lines, "activation", '"local":{"rms":', '"local":{"rms":0.1,"was":', among='"outcome":"fail"')


def limit_raised(lines: list[str]) -> int:
    return _edit(lines, "activation", '"limits":{"rms":', '"limits":{"rms":9')


def footer_changed(lines: list[str]) -> int:
    return _edit(lines, "footer", '"exit_code":1', '"exit_code":0')


def digest_changed(lines: list[str]) -> int:
    return _edit(lines, "footer", '"digest":"', '"digest":"0')


def digest_removed(lines: list[str]) -> int:
    lines[1] = lines[1].partition(',"digest"')[0] + "}\n"
    return 2


def line_removed(lines: list[str]) -> int:
    at = next(i for i, line in enumerate(lines) if line.startswith('{"kind":"activation"') and '"outcome":"fail"' in line)
    del lines[at]
    return at + 1


EDITS: tuple[Callable[[list[str]], int], ...] = (
    *(excused, skipped, passed, golden_renamed, error_lowered, limit_raised, footer_changed),
    *(digest_changed, digest_removed, line_removed),
)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edited_file_is_refused_with_the_first_changed_line(
    edit: Callable[[list[str]], int], whole: list[str], tmp_path: Path, command: Command
) -> None:
    lines, file, good = list(whole), tmp_path / "results.jsonl", tmp_path / "good.jsonl"
    first = edit(lines)
    assert lines != whole
    file.write_text("".join(lines))
    good.write_text("".join(whole))
    resume = ("run", "making-bert", "--golden", "tiny", "--in-process", "--resume", "-o", tmp_path)
    for words in (("report", file), ("report", good, file), ("diff", good, file), ("replay", file), resume):
        ended = command(*words)
        assert (ended.code, f"contradiction: {file}, line {first}, " in ended.words) == (1, True), ended
    assert file.read_text() == "".join(lines)


def test_a_file_and_several_in_one_are_read_as_they_were_written(whole: list[str], tmp_path: Path) -> None:
    for times in (1, 2):
        (tmp_path / "results.jsonl").write_text("".join(whole) * times)
        assert read_results(tmp_path / "results.jsonl").sound
