"""Mistakes in which a later layer reads the embeddings, or keeps or adds the result of an earlier layer."""

from collections.abc import Callable

from torch import Tensor

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import Plant, kept, many_layers, override
from conformance.model.architecture import Architecture

ATTENDED, OUTPUT = "attention.output.LayerNorm", "output.LayerNorm"


def _last(a: Architecture, step: str) -> frozenset[str]:
    return frozenset([f"encoder.layer.{a.num_hidden_layers - 1}.attention.self.{step}"])


def _probs_of_first(model: Bert) -> None:
    """Let the last layer use the probabilities of the first."""
    last = model.layer(model.architecture.num_hidden_layers - 1)
    found = kept(model.layer(0).attention.self.probs)
    override(last.attention.self.probs, "forward", lambda scores, mask: found.pop())


def _scores_added(model: Bert) -> None:
    """Add the scores of the layer before to those of the last layer."""
    last = model.architecture.num_hidden_layers - 1
    found, scores = kept(model.layer(last - 1).attention.self.scores), model.layer(last).attention.self.scores
    right = scores.forward
    override(scores, "forward", lambda query, key: right(query, key) + found.pop())


def _query_of_embeddings(model: Bert) -> None:
    """Let the last layer's query read the output of the embeddings."""
    found = kept(model.embeddings.dropout)
    query = model.layer(model.architecture.num_hidden_layers - 1).attention.self.query
    right = query.forward

    def forward(_: Tensor) -> Tensor:
        return right(found.pop())

    override(query, "forward", forward)


def _residual_kept(model: Bert, source: str, norm: str) -> None:
    """Let a norm of the last layer add the result of a norm of the layer before as its residual."""
    last = model.architecture.num_hidden_layers - 1
    found = kept(model.layer(last - 1).get_submodule(source))
    override(model.layer(last).get_submodule(norm), "add", lambda x, _: x + found.pop())


def _of_last(step: str) -> Callable[[Architecture, int], frozenset[str]]:
    return lambda a, _: frozenset([f"encoder.layer.{a.num_hidden_layers - 1}.{step}"])


PLANTS = (
    Plant("residual-of-layer-before", "the second residual of the last layer is that of the layer before",
          lambda model, _: _residual_kept(model, ATTENDED, OUTPUT), False, _of_last(OUTPUT), many_layers),
    Plant("residual-not-updated", "the first residual of the last layer is the output of the layer before's attention",
          lambda model, _: _residual_kept(model, ATTENDED, ATTENDED), False, _of_last(ATTENDED), many_layers),
    Plant("layer-kept", "the last layer has the first layer's probabilities, of three layers or more",
          lambda model, _: _probs_of_first(model), False, lambda a, _: _last(a, "probs"), lambda a: a.num_hidden_layers > 2),
    Plant("layer-before-added", "the scores of the last layer but one are added to the last layer's",
          lambda model, _: _scores_added(model), False, lambda a, _: _last(a, "scores"), many_layers),
    Plant("input-embeddings", "the last layer's query reads the output of the embeddings",
          lambda model, _: _query_of_embeddings(model), False, lambda a, _: _last(a, "query"), many_layers),
)  # fmt: skip
