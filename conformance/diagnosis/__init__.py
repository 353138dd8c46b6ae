"""Diagnosis of a black box: the faults that explain its outputs, from the outputs and the checkpoint alone.

The layers that a candidate does not expose are diagnosed as a black box too (`unexposed_layers`).
"""

from conformance.diagnosis.conclusions import Diagnosis, FaultAttribution, RankedExplanation, Unseen
from conformance.diagnosis.diagnose_black_box import diagnose
from conformance.diagnosis.outputs import OutputTable
from conformance.diagnosis.outputs_file import read
from conformance.diagnosis.pooling import POOLINGS

__all__ = ["POOLINGS", "Diagnosis", "FaultAttribution", "OutputTable", "RankedExplanation", "Unseen", "diagnose", "read"]
