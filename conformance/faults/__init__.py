"""Mistakes that real BERTs have had, each a small change of the oracle, by theme."""

from conformance.faults.catalogue import BY_NAME, CATALOGUE
from conformance.faults.fault import Fault, FaultContext, Parameter

__all__ = ["BY_NAME", "CATALOGUE", "Fault", "FaultContext", "Parameter"]
