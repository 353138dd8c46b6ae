"""Diagnosis of a closed system: from final outputs alone, and the checkpoint, the faults that explain them."""

from conformance.diagnosis.evidence import Blamed, Diagnosis, Explanation, Unseen
from conformance.diagnosis.outputs import Table, read
from conformance.diagnosis.pooling import POOLINGS
from conformance.diagnosis.rank import diagnose

__all__ = ["POOLINGS", "Blamed", "Diagnosis", "Explanation", "Table", "Unseen", "diagnose", "read"]
