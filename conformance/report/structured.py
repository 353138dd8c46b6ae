"""JSON form of a run, for programs: the contents of the results file and the mistakes derived from them. A pure function."""

from collections.abc import Sequence
from typing import Any

from conformance.report.coverage_sentences import mistakes
from conformance.report.finding_sentences import cause, evidence, sentence
from conformance.report.findings import layers_of
from conformance.results.records import ActivationRecord, Results
from conformance.results.to_records import footer


def structured(results: Results) -> dict[str, Any]:
    """Return the results as an object for JSON.

    - `headers`: software and machine of each run; empty if the file has no header.
    - `footer`: `declared`, `ran`, `outcomes` and `exit_code` of all runs together.
    - `notes`: missing, contradictory and duplicate results, among others; each has `kind`, `text`, and `grave`, which tells whether
      the note rules out success.
    - `cases`, in the order in which they ran, each with
        - `check` and `activations`: the records, with the names of the results file (`run --schema` prints its JSON Schema);
        - `mistakes`, worst first: `sentence`, `evidence` and `cause` in words; `fault`, as in an activation's record (`name`,
          `z`, `estimate`, …), null for an unidentified mistake; `steps` at which the mistake acts; `activations` that it explains;
          `others`, the mistakes that cannot be distinguished from it; `anatomy`, the description of an unidentified mistake, and
          `hidden`, the steps before it that are not exposed, in words; `estimates`, the fitted numbers in words; `excess`, the
          largest error divided by its limit.
    """
    return {
        "headers": results.headers,
        "footer": results.footer or footer(results.checks),
        "notes": [{"kind": note.kind, "text": note.text, "grave": note.grave} for note in results.remarks],
        "cases": [{"check": c.check, "activations": c.activations, "mistakes": _mistakes(c.activations)} for c in results.cases],
    }


def _mistakes(activations: Sequence[ActivationRecord]) -> list[dict[str, Any]]:
    layers = layers_of(activations)
    return [{"sentence": sentence(f, layers), "evidence": evidence(f), "cause": cause(f)} | vars(f) for f in mistakes(activations)]
