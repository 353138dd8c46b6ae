"""Diagnosis of a closed system: from final outputs alone, and the checkpoint, the faults that explain them."""

from conformance.diagnosis.evidence import Diagnosis, FaultAttribution, RankedExplanation, Unseen
from conformance.diagnosis.outputs import OutputTable, read
from conformance.diagnosis.pooling import POOLINGS
from conformance.diagnosis.rank import diagnose

__all__ = ["POOLINGS", "Diagnosis", "FaultAttribution", "OutputTable", "RankedExplanation", "Unseen", "diagnose", "read"]
