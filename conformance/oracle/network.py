"""The oracle: a BERT in NumPy float64, one step at a time, written from the papers' equations.

It takes nothing from PyTorch or Hugging Face. A network is an architecture, its parameters and a batch; `step` evaluates any one
activation from given parents, `walk` the whole network.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from conformance.errors import UsageError
from conformance.model.activations import SCALAR, Activation, parameter_shapes, table
from conformance.model.architecture import Architecture
from conformance.model.batch import IGNORED_LABEL, Batch, Ids
from conformance.model.gradients import with_gradients
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.embeddings import Copy, PositionLookup, Sinusoids, Sum, TokenTypeLookup, WordLookup
from conformance.oracle.gradients.losses import CrossEntropyBackward, NegativeLogLikelihoodBackward
from conformance.oracle.gradients.norm import NormBackward, NormGradient
from conformance.oracle.gradients.pointwise import GeluBackward, GeluTanhBackward, ReluBackward, TanhBackward
from conformance.oracle.gradients.products import (
    ContextBackwardProbs,
    ContextBackwardValue,
    FirstTokenLinearBackward,
    FirstTokenLinearGradient,
    LinearBackward,
    LinearGradient,
    ScoresBackwardKey,
    ScoresBackwardQuery,
)
from conformance.oracle.gradients.softmax import LogSoftmaxBackward, ProbabilitiesBackward
from conformance.oracle.gradients.sums import (
    BiasGradient,
    NormBiasGradient,
    PositionLookupGradient,
    Seed,
    TokenTypeLookupGradient,
    WordLookupGradient,
)
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
    "seed": Seed,
    "linear_backward": LinearBackward,
    "first_token_linear_backward": FirstTokenLinearBackward,
    "norm_backward": NormBackward,
    "scores_backward_query": ScoresBackwardQuery,
    "scores_backward_key": ScoresBackwardKey,
    "context_backward_probs": ContextBackwardProbs,
    "context_backward_value": ContextBackwardValue,
    "probs_backward": ProbabilitiesBackward,
    "gelu_backward": GeluBackward,
    "gelu_new_backward": GeluTanhBackward,
    "gelu_pytorch_tanh_backward": GeluTanhBackward,
    "relu_backward": ReluBackward,
    "tanh_backward": TanhBackward,
    "log_softmax_backward": LogSoftmaxBackward,
    "masked_lm_loss_backward": CrossEntropyBackward,
    "masked_lm_loss_of_log_probs_backward": NegativeLogLikelihoodBackward,
    "next_sentence_loss_backward": CrossEntropyBackward,
    "next_sentence_loss_of_log_probs_backward": NegativeLogLikelihoodBackward,
    "classification_loss_backward": CrossEntropyBackward,
    "linear_gradient": LinearGradient,
    "first_token_linear_gradient": FirstTokenLinearGradient,
    "bias_gradient": BiasGradient,
    "norm_gradient": NormGradient,
    "norm_bias_gradient": NormBiasGradient,
    "word_lookup_gradient": WordLookupGradient,
    "position_lookup_gradient": PositionLookupGradient,
    "token_type_lookup_gradient": TokenTypeLookupGradient,
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
    """An architecture with its parameters (Hugging Face's names, float64) and a batch.

    Attributes:
        source: the activation, a loss if it is one number, from which a backward pass starts; None: the forward pass alone.
    """

    architecture: Architecture
    weights: Mapping[str, Array]
    batch: Batch
    source: str | None = field(default=None, kw_only=True)

    @cached_property
    def table(self) -> dict[str, Activation]:
        """The activations that this batch defines: a loss only where rows have labels, all of them at what is attended to.

        Raises:
            UsageError: the backward pass is to start from what this batch does not define, as where every label is ignored.
        """
        given = self.batch.arrays()
        rows: dict[str, Activation] = {}
        for name, row in table(self.architecture).items():
            labels = LABELS.get(row.kind)
            if (labels is None or _defines_loss(given.get(labels), self.batch)) and all(parent in rows for parent in row.parents):
                rows[name] = row
        if self.source is None:
            return rows
        if self.source not in rows:
            losses = ", ".join(name for name, row in rows.items() if row.axes == SCALAR) or "none"
            raise UsageError(f"no backward pass starts from {self.source}, which this batch does not define; its losses: {losses}")
        return with_gradients(rows, self.source, parameter_shapes(self.architecture))

    def cut(self, rows: slice, length: int | None = None) -> "Network":
        """The same on a part of the batch (`Batch.cut`), with the same table."""
        part = replace(self, batch=self.batch.cut(rows, length))
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
