"""The step class of each kind of activation; the modules of all classes, which register these, are imported here."""

from conformance.oracle import bilinear, embeddings, linear, losses, norm, optimizer, pointwise, pooling, softmax  # noqa: F401
from conformance.oracle.gradients import losses as of_losses  # noqa: F401
from conformance.oracle.gradients import norm as of_norm  # noqa: F401
from conformance.oracle.gradients import pointwise as of_pointwise  # noqa: F401
from conformance.oracle.gradients import pooling as of_pooling  # noqa: F401
from conformance.oracle.gradients import products, sums  # noqa: F401
from conformance.oracle.gradients import softmax as of_softmax  # noqa: F401
from conformance.oracle.step import EQUATIONS as EQUATIONS
