"""The oracle network: a BERT in NumPy float64, evaluated one step at a time, written from the equations of the papers.

It uses no layer of PyTorch or Hugging Face; in memory, only erf and partial sums are PyTorch's (`numerics.functions`). A network
consists of an architecture, its parameters and a batch; `step` evaluates one activation, and `walk` the whole network.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from conformance.errors import UsageError
from conformance.model.activation import SCALAR, Activation
from conformance.model.activations import in_training, parameter_shapes, table
from conformance.model.architecture import Architecture
from conformance.model.batch import IGNORED_LABEL, Batch, Ids
from conformance.model.checkpoint import LazyWeights, cached_parameters
from conformance.model.gradients import ends, sources, with_gradients
from conformance.numerics.formats import Array, as_array, placed
from conformance.numerics.memo import cached_property
from conformance.oracle.equations import EQUATIONS
from conformance.oracle.losses import LABELS
from conformance.oracle.step import Site, Step


def _defines_loss(kind: str, labels: Ids | Array | None, batch: Batch) -> bool:
    """Return whether some row has a label and no labelled row depends on padding.

    A loss over sentences reads the first token of a row, a loss over tokens the labelled tokens, and a span loss every token.
    """
    if labels is None:
        return False
    if labels.dtype == np.float64:  # Regression and multi-label targets exist for every row.
        return bool(batch.mask[:, 0].all())
    labelled = labels != IGNORED_LABEL
    read = as_array(batch.mask.all(1)) if kind.startswith("span_") else batch.mask[:, 0]
    of_rows = as_array(read.reshape(len(labels), -1).all(1))  # A multiple-choice question reads all its rows.
    attended = batch.mask if labels.ndim == 2 else of_rows
    return bool(labelled.any() and attended[labelled].all())


@dataclass(frozen=True)
class Network:
    """An architecture with its parameters and a batch.

    Attributes:
        architecture: the architecture.
        weights: float64 parameters by Hugging Face's names.
        batch: the batch.
        source: the activation from which a backward pass starts (a loss if it is a scalar), or a sum of losses, `a + b`; None for
            the forward pass alone.
        kept: the mask of each dropout in training mode, by name, with 1 for kept and 0 for dropped elements; a dropout without a
            mask drops nothing.
    """

    architecture: Architecture
    weights: Mapping[str, Array]
    batch: Batch
    source: str | None = field(default=None, kw_only=True)
    kept: Mapping[str, Array] = field(default_factory=dict, kw_only=True)

    @cached_property
    def table(self) -> dict[str, Activation]:
        """The activations that this batch defines.

        A loss is defined if some rows have labels and these labels lie on attended tokens. Cross-attention is defined if the batch
        has encoder states.

        Raises:
            UsageError: this batch does not define the source of the backward pass, for example because all labels are ignored.
        """
        given, a = self.batch.arrays(), self.architecture
        if a.add_cross_attention and self.batch.encoder_hidden_states is None:
            a = a.with_(add_cross_attention=False)  # Without encoder states a decoder omits cross-attention.
        rows: dict[str, Activation] = {}
        for name, row in table(a).items():
            labels = LABELS.get(row.kind)
            if (labels is None or _defines_loss(row.kind, given.get(labels), self.batch)) and all(
                parent in rows for parent in row.parents
            ):
                rows[name] = row
        rows = in_training(rows, self.kept)
        if self.source is None:
            return rows
        terms = tuple(self.source.split(" + "))
        if len(terms) > 1 and all(term in rows for term in terms):
            rows[self.source] = replace(rows[terms[0]], name=self.source, kind="total_loss", parents=terms, equation=self.source)
        if self.source not in rows:
            losses = ", ".join(name for name, row in rows.items() if row.axes == SCALAR) or "none"
            raise UsageError(f"no backward pass starts from {self.source}, which this batch does not define; its losses: {losses}")
        return with_gradients(rows, self.source, parameter_shapes(self.architecture))

    @cached_property
    def undefined_losses(self) -> frozenset[str]:
        """The losses for which this batch has labels and which it does not define, and the sums of such losses."""
        given, found = self.batch.arrays(), set[str]()
        for name, row in table(self.architecture).items():
            if name not in self.table and row.axes == SCALAR and (LABELS.get(row.kind) in given or found & set(row.parents)):
                found.add(name)
        return frozenset(found)

    def backward_passes(self) -> Iterator["Network"]:
        """Yield this network with each loss and output that has no children as source; together they reach every activation."""
        forward = replace(self, source=None)
        for source in sources(forward.table, ends(self.architecture) & forward.table.keys()):
            yield replace(forward, source=source)

    @property
    def is_repeatable(self) -> bool:
        """Whether architecture, parameters, batch and source determine the network; dropout masks are drawn and not repeatable."""
        return not self.kept

    def cut(self, rows: slice, length: int | None = None) -> "Network":
        """Return this network on a part of the batch (`Batch.cut`), with the same table."""
        kept = {name: mask[self.table[name].cut(rows, length)] for name, mask in self.kept.items()}
        part = replace(self, batch=self.batch.cut(rows, length), kept=kept)
        part.__dict__["table"] = self.table
        return part

    def on(self, device: str) -> "Network":
        """Return this network with its parameters and dropout masks on a device of torch, where its steps are then computed."""
        moved = replace(
            self,
            weights=LazyWeights(self.weights, cached_parameters(lambda name: placed(self.weights[name], device))),
            kept={name: placed(mask, device) for name, mask in self.kept.items()},
        )
        moved.__dict__["table"] = self.table
        return moved

    def site(self, name: str) -> Site:
        """Return the site of the activation `name`: its table row, parameters and batch."""
        row = self.table[name]
        parameters = {role: self.weights[parameter] for role, parameter in row.parameters.items()}
        return Site(row, self.architecture, parameters, self.batch, self.kept.get(row.dropout))

    def step(self, name: str, *parents: Array) -> Step:
        """Return the step that computes `name` from `parents`."""
        return EQUATIONS[self.table[name].kind](self.site(name), *parents)

    def walk(self) -> Iterator[tuple[str, Array]]:
        """Yield each activation's name and value in order; a value is released once its last child is computed."""
        last_use = {parent: name for name, row in self.table.items() for parent in row.parents}
        held: dict[str, Array] = {}
        for name, row in self.table.items():
            held[name] = self.step(name, *(held[p] for p in row.parents)).value
            yield name, held[name]
            for parent in row.parents:
                if last_use[parent] == name:
                    held.pop(parent, None)
