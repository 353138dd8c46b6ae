"""The network of a black box, correct or with faults, evaluated from token ids or known activations to the printed numbers."""

from conformance.diagnosis.black_box import PRINTED, BlackBox
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Format
from conformance.oracle.linear_maps import Roundings


class BlackBoxSegment(Segment):
    """The segment from token ids or known activations to the printed numbers.

    Attributes:
        network: the black box.
        storage: the promised format.
    """

    network: BlackBox

    def __init__(self, network: BlackBox, storage: Format) -> None:
        """Evaluate the network without faults; `storage` is the promised format."""
        super().__init__(network, PRINTED, network.leaves)
        self.storage = storage

    def _step_roundings(self, name: str, arithmetic: Arithmetic) -> Roundings:
        """Return the step's roundings; those of printing are not doubled for float64, because the oracle prints nothing."""
        return self.steps[name].roundings(arithmetic) if name == PRINTED else super()._step_roundings(name, arithmetic)

    def ancestors(self, pooling_index: int) -> frozenset[str]:
        """Return the names of the activations from which the printed numbers are computed under one pooling."""
        todo = [
            part.parent
            for part in self.network.reading.parts
            if part.pooling_slice.start <= pooling_index < part.pooling_slice.stop
        ]
        found = set(todo)
        while todo:
            parents = set(self.network.table[todo.pop()].parents) - found
            found |= parents
            todo += parents
        return frozenset(found)
