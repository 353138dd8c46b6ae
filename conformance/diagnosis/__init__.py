"""Diagnosis of a black box: the faults that explain its outputs, from the outputs and the checkpoint alone.

- `diagnose_black_box.diagnose` is the entry point, and `Diagnosis` its result, in words.
- Reading: `outputs_file` reads a file, by `tables`; `outputs` are the numbers, with what their digits say and the activations
  that they belong to.
- The network: `black_box` is its table and its last step, the printed numbers, under each pooling of `pooling`,
  evaluated correct or with faults.
- The judgement: `judgement` tests whether a network could have printed the numbers.
- The search: `explanations` judges the correct network and orders what explains a failure; `problem` applies the filters and
  states the search for `judge.search`; `inputs` are mistakes in the inputs.
- `unexposed_layers` diagnoses the layers that a candidate does not expose as a black box too.
"""

from conformance.diagnosis.diagnose_black_box import Diagnosis, FaultAttribution, RankedExplanation, diagnose
from conformance.diagnosis.outputs_file import read
from conformance.diagnosis.pooling import POOLINGS
from conformance.diagnosis.tables import OutputTable

__all__ = ["POOLINGS", "Diagnosis", "FaultAttribution", "OutputTable", "RankedExplanation", "diagnose", "read"]
