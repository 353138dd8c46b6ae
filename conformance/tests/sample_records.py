"""Records written by hand, so that they are identical on every machine (the last digits of a real run are not)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from conformance.judge.evidence import Error
from conformance.report.output_formats import REPORT_FORMATS
from conformance.report.run import document
from conformance.results.case import Case
from conformance.results.file import Writer
from conformance.results.merge import RunRecords, merged
from conformance.results.records import (
    SCHEMA_VERSION,
    ActivationRecord,
    CaseRecords,
    CheckRecord,
    CounterexampleRecord,
    FaultRecord,
    Footer,
    GoldenRecord,
    Header,
    Record,
    Results,
    Sensitivity,
)
from conformance.results.to_records import footer

LAYERS = 6
_DIFFERS = "encoder.layer.0.output.LayerNorm[0, 2, 5] is 1.2, and 1.3 in the other run"


def header(**fields: Any) -> Header:
    versions = {"schema": SCHEMA_VERSION, "suite": "0.1.0", "python": "3.12.0", "torch": "2.13.0", "transformers": "5.23.0"}
    machine = {"platform": "Linux", "processor": "x86_64, 2 cores", "gpu": None, "threads": 1}
    goldens = {"goldens": {"tiny": GoldenRecord(1, "0" * 64, "1" * 64, "generated")}, "checkpoint": None}
    usual = {**versions, **machine, **goldens, "false_alarm": 1e-6, "examples": 20}
    return Header(**{**usual, **fields})


def checked(case: Case, outcome: Any = "pass", rendered: tuple[ActivationRecord, ...] = (), **fields: Any) -> CaseRecords:
    counts = {"judged": 0, "activations": 0, "median_rms": None, "excludes": []}
    code = 0 if outcome in ("pass", "skip", "xfail") else 1
    usual = {"reason": "", "seconds": 2.5, "declared": True, "executed": outcome != "skip", "exit_code": code, **counts}
    key = (case.implementation, case.golden, case.device, case.dtype, case.check)
    return CaseRecords(CheckRecord(*key, outcome, **{**usual, **fields}), rendered)


def activation(case: Case, name: str, rms: float = 0.5, faults: tuple[FaultRecord, ...] = (), **fields: Any) -> ActivationRecord:
    """Return an activation whose RMS may be at most 1.62; a larger RMS fails."""
    fails = rms > 1.62 or fields.get("reason")
    errors = {"local": Error(rms, 4 * rms, 1e-6 * rms, (0, 0)), "global_error": Error(rms / 3, rms, 1e-6 * rms, (0, 0))}
    limits = {"limits": {"rms": 1.62, "max": 8.1, "filter": 6.7}, "excess": rms / 1.62, "arithmetic": "float32"}
    verdict = {"outcome": "fail" if fails else "pass", "role": "origin" if fails else None, "faults": list(faults)}
    usual = {"batch": "", "reason": "", **verdict, **errors, **limits}
    return ActivationRecord(case.implementation, case.golden, case.device, case.dtype, activation=name, **{**usual, **fields})


def run(*cases: CaseRecords, source: str = "", finished: bool = True, **fields: Any) -> RunRecords:
    return RunRecords(header(**fields), cases, footer(case.check for case in cases) if finished else None, source)


def write_lines(lines: Iterable[str], path: Path) -> None:
    """Write a results file of the given records in JSON, with digests of their own, as a run with these results would write it."""
    with Writer(path) as writer:
        for line in lines:
            writer.write(msgspec.json.decode(line, type=Record))


def everything() -> Results:
    """Return a run with every kind of record: two files of one run, one of them cut short, and another run that contradicts it."""
    first = run(_two_mistakes(), _nameless(), _passes(), *_laws(), _known("deep"), source="one.jsonl")
    second = run(_leaking(), _crash(), _known("tiny"), _skip("wide"), _skip("deep"), source="two.jsonl", finished=False)
    third = run(checked(Case("hf-onnx", "tiny"), "fail", reason=_DIFFERS), _skip("deep"), source="again.jsonl")
    return merged([first, second, third])


def _two_mistakes() -> CaseRecords:
    case = Case("my_package.conformance:bad", "minilm")
    norm, gelu = "encoder.layer.0.attention.output.LayerNorm", "encoder.layer.1.intermediate.intermediate_act_fn"
    epsilon = FaultRecord("epsilon", norm, 1.0, 681.4, "epsilon", 1.00012e-05, 1.5e-08, 1e-12)
    form = FaultRecord("gelu-variant", gelu, 0.99998, 2.318e6, None, None, None, kind="gelu")
    rendered = (
        activation(case, norm, 76.55, (epsilon,)),
        activation(case, gelu, 145413.8, (form,)),
        activation(case, f"encoder.layer.{LAYERS - 1}.output.LayerNorm"),
    )
    reason = f"2 of 85 judged activations fail, the first at {norm}"
    return checked(case, "fail", rendered, reason=reason, judged=85, activations=97, median_rms=0.46)


def _nameless() -> CaseRecords:
    case = Case("odd", "tiny", dtype="bfloat16")
    rendered = tuple(
        activation(
            case,
            f"encoder.layer.{n}.attention.self.context",
            31.0 + n,
            batch="padded",
            anatomy=["wrong in head 2 alone, at every position", "what it makes is 0.97 of what it should be"] if n == 0 else [],
        )
        for n in range(LAYERS)
    )
    broken = activation(
        case, "pooler.dense", reason="has the shape (6, 31), expected (6, 32)", local=None, global_error=None, excess=None
    )
    return checked(case, "fail", (*rendered, broken), reason="7 of 47 judged activations fail", judged=47, activations=47)


def _leaking() -> CaseRecords:
    case = Case("leaking", "tiny", check="padding-length")
    batch = {"input_ids": [[7, 3, 0]], "attention_mask": [[1, 1, 0]], "token_type_ids": [[0, 1, 0]]}
    found = CounterexampleRecord("tiny", batch, {"tokens": 1, "id": 0}, [batch], "assert run(...) == run(...)  # ```\n")
    place = "encoder.layer.0.attention.self.probs[0, 2, 0, 0]"
    reason = f"{place} is 1, and 0.59575212 in the other run: 2.72e+05 times what rounding explains"
    return checked(case, "fail", reason=reason, tried=5, worst=0.4, counterexample=found)


def _crash() -> CaseRecords:
    reason = (
        'RuntimeError: mat1 and mat2 shapes cannot be multiplied\nTraceback (most recent call last):\n  File "bert.py", line 7\n'
    )
    return checked(Case("fragile", "tiny"), "crash", reason=reason, judged=12, activations=47)


def _known(golden: str) -> CaseRecords:
    return checked(Case("hf-onnx", golden), "xfail", reason="epsilon is 1e-5 until 2.0 (#17)", judged=39, activations=47)


def _skip(golden: str) -> CaseRecords:
    return checked(Case("torch-encoder", golden), "skip", reason="it has no token types", declared=False)


def _passes() -> CaseRecords:
    norm = "encoder.layer.0.output.LayerNorm"
    excludes = [
        Sensitivity("mask-added-raw", "encoder.layer.0.attention.self.probs", 3.2, 4, 6),
        Sensitivity("epsilon", norm, 21.0, 13, 13, "epsilon", 1e-12, 1e-12 + 3.4e-09),
        Sensitivity("scale-missing", "encoder.layer.0.attention.self.scores", 1e6, 6, 6, "scale", 0.1767767, 0.1767767 + 4.8e-08),
        Sensitivity("gelu-argument", "encoder.layer.0.intermediate.intermediate_act_fn", 1e5, 6, 6, "argument", 0.70711, 0.7071105),
    ]
    return checked(Case("hf-sdpa", "minilm"), judged=79, activations=97, median_rms=0.4612, excludes=excludes)


def _laws() -> list[CaseRecords]:
    names = ("padding-length", "padding-content", "masked-row", "batching", "mask-omitted", "token-types-omitted", "mask-dtype")
    searched = [checked(Case("hf-sdpa", "tiny", check=name), tried=20, worst=0.1 + 0.05 * i) for i, name in enumerate(names)]
    return [*searched, checked(Case("hf-sdpa", "tiny", check="dropout-off"))]


EMPTY = Results((), (), Footer(0, 0, {}, 1))


def report(form: str, results: Results) -> str:
    """Return the report of a run in a format."""
    return REPORT_FORMATS[form].text(document(results))
