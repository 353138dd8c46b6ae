"""The oracle: a BERT in NumPy float64, one step at a time, written from the papers' equations.

It takes nothing from PyTorch or Hugging Face. A network is an architecture, its parameters and a batch; `step` evaluates any one
activation from given parents, `walk` the whole network.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from conformance.model.activations import Activation, table
from conformance.model.architecture import Architecture
from conformance.model.batch import IGNORED_LABEL, Batch, Ids
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.embeddings import Copy, PositionLookup, Sinusoids, Sum, TokenTypeLookup, WordLookup
from conformance.oracle.losses import LABELS, CrossEntropy, NegativeLogLikelihood, TotalLoss
from conformance.oracle.norm import Norm
from conformance.oracle.pointwise import Gelu, GeluTanh, Relu, Tanh
from conformance.oracle.products import Context, FirstTokenLinear, Linear, Scores
from conformance.oracle.softmax import LogSoftmax, Probabilities
from conformance.oracle.step import Site, Step

EQUATIONS: Mapping[str, type[Step]] = {
    "word_lookup": WordLookup,
    "position_lookup": PositionLookup,
    "token_type_lookup": TokenTypeLookup,
    "sinusoids": Sinusoids,
    "sum": Sum,
    "copy": Copy,
    "norm": Norm,
    "linear": Linear,
    "first_token_linear": FirstTokenLinear,
    "scores": Scores,
    "probs": Probabilities,
    "context": Context,
    "gelu": Gelu,
    "gelu_new": GeluTanh,
    "gelu_pytorch_tanh": GeluTanh,
    "relu": Relu,
    "tanh": Tanh,
    "log_softmax": LogSoftmax,
    "masked_lm_loss": CrossEntropy,
    "masked_lm_loss_of_log_probs": NegativeLogLikelihood,
    "next_sentence_loss": CrossEntropy,
    "next_sentence_loss_of_log_probs": NegativeLogLikelihood,
    "classification_loss": CrossEntropy,
    "total_loss": TotalLoss,
}


def _defines_loss(labels: Ids | None, batch: Batch) -> bool:
    """Whether a row has a label, and none that has one rests on padding (a sentence rests on its first token)."""
    if labels is None:
        return False
    labelled = labels != IGNORED_LABEL
    attended = batch.mask if labels.ndim == 2 else batch.mask[:, 0]
    return bool(labelled.any() and attended[labelled].all())


@dataclass(frozen=True)
class Network:
    """An architecture with its parameters (Hugging Face's names, float64) and a batch."""

    architecture: Architecture
    weights: Mapping[str, Array]
    batch: Batch

    @cached_property
    def table(self) -> dict[str, Activation]:
        """The activations that this batch defines: a loss only where rows have labels, all of them at what is attended to."""
        given = self.batch.arrays()
        rows: dict[str, Activation] = {}
        for name, row in table(self.architecture).items():
            labels = LABELS.get(row.kind)
            if (labels is None or _defines_loss(given.get(labels), self.batch)) and all(parent in rows for parent in row.parents):
                rows[name] = row
        return rows

    def cut(self, rows: slice, length: int | None = None) -> "Network":
        """The same on a part of the batch (`Batch.cut`), with the same table."""
        part = Network(self.architecture, self.weights, self.batch.cut(rows, length))
        part.__dict__["table"] = self.table
        return part

    def site(self, name: str) -> Site:
        """Where activation `name` stands."""
        row = self.table[name]
        parameters = {role: self.weights[parameter] for role, parameter in row.parameters.items()}
        return Site(row, self.architecture, parameters, self.batch)

    def step(self, name: str, *parents: Array) -> Step:
        """The step that computes `name`, evaluated on `parents`."""
        return EQUATIONS[self.table[name].kind](self.site(name), *parents)

    def walk(self) -> Iterator[tuple[str, Array]]:
        """Every activation in order; a value is let go once its last child is computed."""
        last_use = {parent: name for name, row in self.table.items() for parent in row.parents}
        held: dict[str, Array] = {}
        for name, row in self.table.items():
            held[name] = self.step(name, *(held[p] for p in row.parents)).value
            yield name, held[name]
            for parent in row.parents:
                if last_use[parent] == name:
                    held.pop(parent, None)
