"""Diagnosis of a closed system: from final outputs alone, and the checkpoint, the faults that explain them.

The layers that a candidate hides are such a system too (`hidden_layers`).
"""

from conformance.diagnosis.evidence import Diagnosis, FaultAttribution, RankedExplanation, Unseen
from conformance.diagnosis.outputs import OutputTable
from conformance.diagnosis.pooling import POOLINGS
from conformance.diagnosis.rank import diagnose
from conformance.diagnosis.reading import read

__all__ = ["POOLINGS", "Diagnosis", "FaultAttribution", "OutputTable", "RankedExplanation", "Unseen", "diagnose", "read"]
