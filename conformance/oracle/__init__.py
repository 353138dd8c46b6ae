"""The oracle: a BERT in NumPy float64, its Jacobians, and the rounding errors that a correct candidate may make."""

from conformance.oracle.equations import EQUATIONS
from conformance.oracle.network import Network
from conformance.oracle.step import Site, Step

__all__ = ["EQUATIONS", "Network", "Site", "Step"]
