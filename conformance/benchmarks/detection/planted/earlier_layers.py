"""Mistakes in which a later layer reads the embeddings, or keeps or adds the result of an earlier layer."""

from torch import Tensor

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import Plant, kept, many_layers, override
from conformance.model.architecture import Architecture


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


PLANTS = (
    Plant("layer-kept", "the last layer has the first layer's probabilities, of three layers or more",
          lambda model, _: _probs_of_first(model), False, lambda a, _: _last(a, "probs"), lambda a: a.num_hidden_layers > 2),
    Plant("layer-before-added", "the scores of the last layer but one are added to the last layer's",
          lambda model, _: _scores_added(model), False, lambda a, _: _last(a, "scores"), many_layers),
    Plant("input-embeddings", "the last layer's query reads the output of the embeddings",
          lambda model, _: _query_of_embeddings(model), False, lambda a, _: _last(a, "query"), many_layers),
)  # fmt: skip
