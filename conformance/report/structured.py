"""A run as one JSON object, for a program: all that its file has, and the mistakes that were made of it. A pure function."""

from collections.abc import Sequence
from typing import Any

import msgspec

from conformance.report.findings import Finding, cause, evidence, layers_of, sentence
from conformance.report.words import mistakes
from conformance.results.records import ActivationRecord, CaseRecords, Note, Results
from conformance.results.to_records import footer


def structured(results: Results) -> str:
    """One JSON object, in one line; what is not a finite number is null.

    - `headers`: what ran, where; one a run, none where a file has none.
    - `footer`: `declared`, `ran`, `outcomes` and `exit_code`, of all runs together.
    - `notes`: what is missing, contradicts itself or is reported twice: `kind`, `text`, and `grave`, whether it is never a success.
    - `cases`, as they ran, each with
        - `check` and `activations`: their records, under the names of the results file (`run --schema` has its JSON Schema);
        - `mistakes`, worst first: `sentence`, `evidence` and `cause` in words; `fault`, as an activation has it (`name`, `z`,
          `estimate`, …), null for a mistake that has no name; `steps` at which it acts; `activations` that it explains;
          `others` that cannot be distinguished from it; `anatomy` of what has no name; `excess`, largest error over its limit.
    """
    rendered = {
        "headers": results.headers,
        "footer": results.footer or footer(results.checks),
        "notes": [_note(note) for note in results.remarks],
        "cases": [_case(case) for case in results.cases],
    }
    return msgspec.json.encode(rendered).decode() + "\n"


def _note(note: Note) -> dict[str, Any]:
    return {"kind": note.kind, "text": note.text, "grave": note.grave}


def _case(case: CaseRecords) -> dict[str, Any]:
    return {"check": case.check, "activations": case.activations, "mistakes": _mistakes(case.activations)}


def _mistakes(activations: Sequence[ActivationRecord]) -> list[dict[str, Any]]:
    layers = layers_of(activations)
    return [_mistake(finding, layers) for finding in mistakes(activations)]


def _mistake(finding: Finding, layers: int) -> dict[str, Any]:
    words = {"sentence": sentence(finding, layers), "evidence": evidence(finding), "cause": cause(finding)}
    return words | vars(finding)
