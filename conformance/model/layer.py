"""The rows of one encoder layer in the table of activations."""

from collections.abc import Iterator
from dataclasses import dataclass

from conformance.model.activation import ATTENTION, CROSS_ATTENTION, DISTANCES, HIDDEN, STATES, Activation, affine
from conformance.model.architecture import Architecture

STATES_NAME = "encoder_hidden_states"


def layer_rows(a: Architecture, index: int, hidden: str) -> Iterator[Activation]:
    """Yield the rows of self-attention, of cross-attention if there is any, and of the feed-forward network.

    Args:
        a: the architecture.
        index: index of the layer.
        hidden: name of the activation that is the input of the layer.
    """
    layer = _Layer(a, index)
    yield from layer.attention("attention", hidden)
    attended = f"{layer.path}.attention.output.LayerNorm"
    if a.add_cross_attention:
        yield from layer.attention("crossattention", attended, states=True)
        attended = f"{layer.path}.crossattention.output.LayerNorm"
    yield from layer.feed_forward(attended)


@dataclass(frozen=True)
class _Layer:
    """One encoder layer of an architecture."""

    a: Architecture
    index: int

    @property
    def path(self) -> str:
        return f"encoder.layer.{self.index}"

    def _row(
        self,
        name: str,
        kind: str,
        parents: tuple[str, ...],
        equation: str,
        *,
        parameters: str = "",
        axes: tuple[str, ...] = HIDDEN,
        size: int = 0,
        exact: bool = False,
        is_internal: bool = False,
    ) -> Activation:
        """Return a row of this layer, with the weight and bias of the module `parameters` if one is given."""
        own = affine(f"bert.{parameters}") if parameters else {}
        causal = self.a.is_decoder and axes == ATTENTION
        heads = self.a.heads_of(self.index) if axes == ATTENTION else 0
        return Activation(
            name, kind, parents, axes, size, equation, own, exact, self.index, is_internal=is_internal, causal=causal, heads=heads
        )

    def attention(self, name: str, hidden: str, *, states: bool = False) -> Iterator[Activation]:
        """Yield self-attention, or cross-attention to encoder states, with its residual sum and norm."""
        own, outer = f"{self.path}.{name}.self", f"{self.path}.{name}.output"
        query, key, value, scores, probs, dropped, context = (
            f"{own}.{part}" for part in ("query", "key", "value", "scores", "probs", "dropout", "context")
        )
        width = self.a.hidden_size if states else self.a.heads_of(self.index) * self.a.head_size
        source, of_source, pairs = (STATES_NAME, STATES, CROSS_ATTENTION) if states else (hidden, HIDDEN, ATTENTION)
        for projection, parent, axes in ((query, hidden, HIDDEN), (key, source, of_source), (value, source, of_source)):
            yield self._row(projection, "linear", (parent,), "x Wᵀ + b", parameters=projection, axes=axes, size=width)
        if self.a.has_relative_positions and not states:
            yield from self._scores_by_distance(own)
        else:
            yield self._row(scores, "scores", (query, key), "q kᵀ / √d, before the mask", axes=pairs)
        yield self._row(probs, "probs", (scores,), "softmax over unmasked keys; 0 elsewhere", axes=pairs)
        yield self._row(dropped, "copy", (probs,), "identity in eval mode", axes=pairs, exact=True)
        yield self._row(context, "context", (dropped, value), "probs · v, heads side by side", size=width)
        yield from self._residual(outer, context, hidden, f"{outer}.LayerNorm")

    def _scores_by_distance(self, own: str) -> Iterator[Activation]:
        """Yield the scores as a sum of the query-key products and of the products with the distance embeddings."""
        distances, scores = f"{own}.distance_embedding", f"{own}.scores"
        equation, weight = "D_ij = E[i − j + P − 1]", {"weight": f"bert.{distances}.weight"}
        yield Activation(
            distances, "distance_lookup", (), DISTANCES, self.a.head_size, equation, weight, exact=True, layer=self.index
        )
        parts = [
            (f"{scores}.content", "scores", (f"{own}.query", f"{own}.key"), "q kᵀ / √d"),
            (f"{scores}.query_distance", "query_distance_scores", (f"{own}.query", distances), "q_i · D_ij / √d"),
            (f"{scores}.key_distance", "key_distance_scores", (f"{own}.key", distances), "k_j · D_ij / √d"),
        ]
        terms = parts if self.a.position_embedding_type == "relative_key_query" else parts[:2]
        for name, kind, parents, formula in terms:
            yield self._row(name, kind, parents, formula, axes=ATTENTION, is_internal=True)
        summed = tuple(name for name, *_ in terms)
        yield self._row(scores, "scores_sum", summed, "the sum of its terms, before the mask", axes=ATTENTION)

    def _residual(self, path: str, inputs: str, skip: str, norm: str) -> Iterator[Activation]:
        """Yield a linear layer, dropout, and the norm of the residual sum; `norm` is the module that has the norm's parameters."""
        dense, dropout, out, width = f"{path}.dense", f"{path}.dropout", f"{path}.LayerNorm", self.a.hidden_size
        yield self._row(dense, "linear", (inputs,), "x Wᵀ + b", parameters=dense, size=width)
        yield self._row(dropout, "copy", (dense,), "identity in eval mode", size=width, exact=True)
        yield self._row(out, "norm", (dropout, skip), "LayerNorm(x + skip)", parameters=norm, size=width)

    def feed_forward(self, attended: str) -> Iterator[Activation]:
        """Yield the feed-forward network with its residual sum and norm."""
        inner, act = f"{self.path}.intermediate.dense", f"{self.path}.intermediate.intermediate_act_fn"
        function, size = self.a.hidden_act, self.a.intermediate_size
        yield self._row(inner, "linear", (attended,), "x Wᵀ + b", parameters=inner, size=size)
        yield self._row(act, function, (inner,), f"{function}(x)", size=size)
        if self.a.activation_dropout:
            inner, act = act, f"{self.path}.intermediate.dropout"
            yield self._row(act, "copy", (inner,), "identity in eval mode", size=size, exact=True)
        shared = f"{self.path}.attention.output.LayerNorm"
        norm = shared if self.a.shared_layer_norm else f"{self.path}.output.LayerNorm"
        yield from self._residual(f"{self.path}.output", act, attended, norm)
