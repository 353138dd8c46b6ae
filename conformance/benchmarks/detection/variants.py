"""Correct BERTs that compute unusually: none may raise an alarm, in any format in which it is correct."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.batching import Arrangement, as_given, row_by_row, unpadded
from conformance.benchmarks.detection.bert import Bert, Candidate
from conformance.benchmarks.detection.planted.plant import DTYPES, Suits, always
from conformance.benchmarks.detection.rewritten import attention, ends, formats, fused, norms, places, products, softmax
from conformance.model.architecture import Architecture
from conformance.model.batch import TorchBatch
from conformance.model.checkpoint import Checkpoint

Change = Callable[[Bert], None]
HALVES_AND_FLOAT32 = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Variant(Candidate):
    """A correct candidate.

    Attributes:
        arranged: how it runs its batch.
        last_only: whether only the last hidden state is shown.
        dtypes: those in which it is correct.
        suits: which architectures it shows anything of.
    """

    arranged: Arrangement = as_given
    last_only: bool = False
    dtypes: tuple[str, ...] = DTYPES
    suits: Suits = always

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Why it cannot be judged there, if so."""
        if not self.suits(architecture):
            return "what it shows, this architecture does not have"
        return None if dtype in self.dtypes else f"what it computes is no correct {dtype}"

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[TorchBatch], Mapping[str, Tensor]]:
        """The candidate, its batch arranged."""
        model = self.build(checkpoint, device, dtype)
        run = self.arranged(model, self.runner(model, dtype))
        if not self.last_only:
            return run
        last = f"encoder.layer.{checkpoint.architecture.num_hidden_layers - 1}.output.LayerNorm"
        return lambda batch: {last: run(batch)[last]}


def _changed(*changes: Change) -> Variant:
    return Variant(changes)


def _has_logits(a: Architecture) -> bool:
    return bool(a.heads)


def _is_logits(name: str) -> bool:
    return name.endswith(("decoder", "seq_relationship", "log_probs", "classifier"))


def _is_no_projection_back(name: str) -> bool:
    return not name.endswith(("output.dense", "output.dropout"))


def _is_norm(name: str) -> bool:
    return name.endswith("LayerNorm")


def _scaled(query: Tensor, key: Tensor) -> Tensor:
    return torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-1, -2))


def _scaled_both(query: Tensor, key: Tensor) -> Tensor:
    root = query.shape[-1] ** -0.25
    return torch.matmul(query * root, (key * root).transpose(-1, -2))


def _divided(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])


def _batched(query: Tensor, key: Tensor) -> Tensor:
    """All heads of all sequences in one batch, the scale in the same call."""
    product = torch.baddbmm(
        query.new_zeros(()), query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), beta=0.0, alpha=query.shape[-1] ** -0.5
    )
    return product.view(*query.shape[:-1], -1)


def _native_gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _erfc_gelu(x: Tensor) -> Tensor:
    rest: Tensor = torch.special.erfc(-x * math.sqrt(0.5))
    return x * 0.5 * rest


def _backwards(*parts: Tensor) -> Tensor:
    """From the last to the first."""
    total = parts[-1]
    for part in parts[-2::-1]:
        total = total + part
    return total


def _tanh(written: Callable[[Tensor], Tensor]) -> Change:
    """The pooler's, in at least float32."""

    def changed(model: Bert) -> None:
        if model.pooler:
            model.pooler.activation.function = formats.at_least_float32(written)

    return changed


def _tanh_by_sigmoid(x: Tensor) -> Tensor:
    """2 sigmoid(2 x) − 1, which cancels near 0: its error is a rounding of 1, and a tanh's one of itself."""
    return 2.0 * torch.sigmoid(2.0 * x) - 1.0


def _tanh_by_expm1(x: Tensor) -> Tensor:
    """(1 − exp(−2 |x|)) / (1 + exp(−2 |x|)), which does not."""
    return -torch.sign(x) * torch.expm1(-2.0 * x.abs()) / (1.0 + torch.exp(-2.0 * x.abs()))


VARIANTS: Mapping[str, Variant] = {
    "as the paper writes it": Variant(),
    # norms and residuals
    "norm, every operation rounded": _changed(places.norms(norms.native_norm)),
    "norm in float32": _changed(places.norms(norms.widened_norm(norms.native_norm))),
    "norm in one pass, float32": _changed(places.norms(norms.widened_norm(norms.one_pass_norm))),
    "norm folded into scale and shift": _changed(places.norms(norms.widened_norm(norms.folded_norm))),
    "norm as a group norm": _changed(places.norms(norms.group_norm)),
    "norm by torch, cast to float32": _changed(places.norms(norms.cast_norm)),
    "norm of an unrounded sum": _changed(fused.sum_and_norm),
    "bias, residual and norm in one": Variant((fused.bias_sum_and_norm,), exposes=_is_no_projection_back),
    "embedding norm native, others not": _changed(
        places.norms(norms.widened_norm(norms.native_norm)), places.embedding_norm(norms.native_norm)
    ),
    "sums from the last to the first": _changed(places.sums(_backwards)),
    # attention
    "softmax, every operation rounded": _changed(places.softmax(softmax.native_softmax)),
    "softmax with a reciprocal": _changed(places.softmax(softmax.reciprocal_softmax)),
    "softmax by logsumexp": _changed(places.softmax(formats.at_least_float32(softmax.logsumexp_softmax))),
    "softmax to base two": _changed(places.softmax(formats.at_least_float32(softmax.base_two_softmax))),
    "softmax of shifted scores": _changed(places.softmax(softmax.shifted_softmax)),
    "softmax in float64": _changed(places.softmax(formats.in_float64(softmax.infinite_softmax))),
    "mask of minus infinity": _changed(places.softmax(softmax.infinite_softmax)),
    "mask of −10000, added in float32": _changed(places.softmax(formats.at_least_float32(softmax.added_softmax))),
    "mask of the least number, added": _changed(places.softmax(softmax.added_least_softmax)),
    "scores shown with the mask": _changed(attention.masked_scores_shown),
    "query scaled before the product": _changed(places.scores(_scaled)),
    "query and key scaled by the fourth root": Variant((places.scores(_scaled_both),), exposes=lambda n: not n.endswith("scores")),
    "scores in one batch of heads": _changed(places.scores(_batched)),
    "a head at a time": _changed(places.scores(products.by_head(_divided)), places.contexts(products.by_head(torch.matmul))),
    "einsum": _changed(
        places.scores(lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5),
        places.contexts(lambda p, v: torch.einsum("bhqk,bhkd->bhqd", p, v)),
    ),
    "torch's own attention": _changed(places.attention(attention.native_attention)),
    "torch's own attention, additive mask": _changed(places.attention(attention.native_attention_additive)),
    "softmax divided after the values": _changed(places.attention(attention.divided_afterwards)),
    "softmax online, over blocks of keys": _changed(places.attention(attention.online_attention)),
    # linear products
    "products summed backwards": _changed(places.products(lambda n, x: F.linear(x.flip(-1), n.weight.flip(-1), n.bias))),
    "bias as a call of its own": _changed(places.products(lambda n, x: x @ n.weight.T + n.bias)),
    "products in two halves": _changed(places.products(products.split_product)),
    "products in eight parts, stored and added": _changed(places.products(products.split_k_product)),
    "products of all tokens in one matrix": _changed(places.products(products.flat_product)),
    "kernels of (in, out)": _changed(places.products(products.transposed_product)),
    "products with features first": _changed(places.products(products.column_product)),
    "products as convolutions": _changed(places.products(products.convolved_product)),
    "products in float64": _changed(
        places.products(lambda n, x: F.linear(x.double(), n.weight.double(), n.bias.double()).to(x.dtype))
    ),
    "feed-forward in chunks": _changed(places.feed_forward(products.chunked_product)),
    "query, key and value in one product": _changed(products.fused_projections),
    "output projection by head": _changed(products.projection_by_head),
    # activation functions
    "GELU, every operation rounded": _changed(places.erf_gelus(_native_gelu)),
    "GELU by erfc": _changed(places.erf_gelus(formats.at_least_float32(_erfc_gelu))),
    "GELU by the normal distribution": _changed(places.erf_gelus(formats.at_least_float32(lambda x: x * torch.special.ndtr(x)))),
    "GELU of an unrounded product": Variant((fused.product_and_gelu,), exposes=lambda n: not n.endswith("intermediate.dense")),
    "GELU in float64": _changed(places.erf_gelus(formats.in_float64(F.gelu))),
    "tanh by expm1": _changed(_tanh(_tanh_by_expm1)),
    "tanh by sigmoid, in float32": Variant((_tanh(_tanh_by_sigmoid),), dtypes=("bfloat16", "float16")),
    # embeddings, pooler, losses
    "look-ups as products": _changed(places.lookups(ends.one_hot)),
    "sinusoids in float32": Variant((ends.float32_sinusoids,), dtypes=HALVES_AND_FLOAT32),
    "pooler of the whole sequence": _changed(ends.pooled_everywhere),
    "losses by hand": _changed(ends.losses_by_hand),
    # the batch
    "one sequence at a time": Variant(arranged=row_by_row),
    "without padding": Variant(arranged=unpadded),
    "padding zeroed": _changed(ends.padding_zeroed),
    # formats, and what is shown
    "everything in float32, rounded when shown": Variant(computes="float32", dtypes=HALVES_AND_FLOAT32),
    "everything in float64, rounded when shown": Variant(computes="float64"),
    "norms only": Variant(exposes=_is_norm),
    "the last hidden state only": Variant(last_only=True),
    "logits only": Variant(exposes=_is_logits, suits=_has_logits),
    "computed in float64, logits only": Variant(exposes=_is_logits, computes="float64", suits=_has_logits),
}
