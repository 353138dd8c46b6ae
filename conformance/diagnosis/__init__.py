"""Diagnosis of a black box: the faults that explain its outputs, from the outputs and the checkpoint alone.

- `diagnose_black_box.diagnose` is the entry point, and `conclusions.Diagnosis` its result, in words.
- Reading: `outputs_file` reads a file, by `tables`, or a pipe; `outputs` are
  the numbers with the activations that they belong to, and `printed` what their digits say.
- The network: `black_box` is its table and its last step, the printed numbers, under each pooling of `pooling`,
  evaluated correct or with faults.
- The judgement: `judgement` tests whether a network could have printed the numbers, and `detectability` applies the filters.
- The search: `black_box_case` is a diagnosis in progress, which orders the explanations, and `printed_problem` its problem for
  `judge.search`; `input_mistakes` are mistakes in the inputs.
- `unexposed_layers` diagnoses the layers that a candidate does not expose as a black box too.
"""

from conformance.diagnosis.conclusions import Diagnosis, FaultAttribution, RankedExplanation, Unseen
from conformance.diagnosis.diagnose_black_box import diagnose
from conformance.diagnosis.outputs import OutputTable
from conformance.diagnosis.outputs_file import read
from conformance.diagnosis.pooling import POOLINGS

__all__ = ["POOLINGS", "Diagnosis", "FaultAttribution", "OutputTable", "RankedExplanation", "Unseen", "diagnose", "read"]
