"""Model types of Hugging Face configurations: BERT, the types that can be read as a BERT, and descriptions of other types."""

from collections.abc import Mapping
from typing import Any

from conformance.errors import UnsupportedArchitectureError

ROBERTA = ("roberta", "xlm-roberta", "camembert")
"""Types that are a BERT with positions starting at `pad_token_id` + 1 and with a masked-LM head named `lm_head`."""

_OTHERS: Mapping[str, str] = {
    "albert": "all layers share one set of parameters, and the embeddings have a width of their own",
    "big_bird": "attention is sparse, over blocks",
    "bart": "an encoder and a decoder, with learned positions and biases of their own",
    "clip": "layers have the LayerNorm before each block, and texts are read with a causal mask",
    "convbert": "half of the heads are convolutions",
    "data2vec-text": "a RoBERTa by another name; write model_type roberta into config.json and rename its parameters",
    "deberta": "scores are sums of content and relative positions, and there are no positions in the embeddings",
    "deberta-v2": "scores are sums of content and relative positions, and there are no positions in the embeddings",
    "distilbert": "a BERT without token types and pooler, under other names; rename its parameters to BertModel's, with a table of "
    "token types that is 0 (dim is hidden_size, n_layers num_hidden_layers, n_heads num_attention_heads, hidden_dim "
    "intermediate_size)",
    "electra": "a BERT whose embeddings may have a width of their own and a projection; where embedding_size is hidden_size, "
    "rename `electra.` to `bert.`, leave out its heads, and write model_type bert",
    "ernie": "a BERT with an embedding of tasks besides",
    "esm": "rotary positions, a LayerNorm before each block, and no LayerNorm of the embeddings",
    "funnel": "layers pool the sequence",
    "gpt2": "a decoder: a LayerNorm before each block, a causal mask, and no token types",
    "ibert": "a quantised RoBERTa",
    "jina_bert": "positions are linear biases of the scores (ALiBi), and the feed-forward network is gated",
    "layoutlm": "a BERT with embeddings of places on a page besides",
    "llama": "a decoder: rotary positions, RMS norms and a gated feed-forward network",
    "longformer": "attention is to a window and to chosen tokens, by two sets of projections",
    "megatron-bert": "a LayerNorm before each block in place of behind it",
    "mobilebert": "bottlenecks around each layer, and norms that are affine maps alone",
    "modernbert": "rotary positions, norms before each block, gated feed-forward networks, and attention to a window",
    "mpnet": "scores have a bias of relative positions, in buckets that all layers share",
    "nomic_bert": "rotary positions and a gated feed-forward network",
    "new": "rotary positions and a gated feed-forward network (GTE)",
    "roberta-prelayernorm": "a LayerNorm before each block in place of behind it",
    "roformer": "rotary positions",
    "squeezebert": "projections are grouped convolutions",
    "t5": "an encoder and a decoder, with RMS norms, no biases, and relative positions in buckets",
    "xlm": "positions and languages in the embeddings, under other names; a LayerNorm behind each block",
    "xlnet": "scores have relative positions by projections of their own, and permutations in training",
}


def require_bert(config: Mapping[str, Any], file: object) -> dict[str, Any]:
    """Return the entries of a `config.json` as those of a BERT; for a RoBERTa, `position_offset` is added.

    RoBERTa's first token has the position `pad_token_id` + 1 (Liu et al. 2019, as in fairseq). Its network numbers only the tokens
    that are not `<pad>`. This gives consecutive positions for a row that is padded on the right and has no `<pad>` elsewhere.

    Raises:
        UnsupportedArchitectureError: the model type is another one; the message says what it is.
    """
    kind = config.get("model_type", "bert")
    if kind in ROBERTA:
        padding = config.get("pad_token_id", 1)
        if not isinstance(padding, int):
            raise UnsupportedArchitectureError(f"{file} has pad_token_id {padding!r:.40}, by which a RoBERTa counts positions")
        return {**config, "position_offset": padding + 1}
    if kind != "bert":
        what = f": {_OTHERS[kind]}" if kind in _OTHERS else ""
        raise UnsupportedArchitectureError(
            f"{file} is of a {kind!r:.40}, and the equations are those of {', '.join(('bert', *ROBERTA))}{what}"
        )
    return dict(config)


def require_head(heads: tuple[str, ...], config: Mapping[str, Any]) -> None:
    """Raise `UnsupportedArchitectureError` if a RoBERTa's masked-LM head, which always uses GELU, differs from that of a BERT."""
    activation = config.get("hidden_act", "gelu")
    if config.get("model_type") in ROBERTA and "masked_lm" in heads and activation != "gelu":
        raise UnsupportedArchitectureError(
            f"hidden_act is {activation!r:.40}, and the masked-LM head of a RoBERTa has gelu; save its base_model without the head"
        )
