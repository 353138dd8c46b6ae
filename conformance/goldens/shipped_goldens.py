"""The shipped goldens: the recipe of each is a row of one table.

Goldens that are fast to run come first, and those that detect hard-coded numbers come after the general ones.

To add a golden:

1. Add a row to `_ROWS` with its purpose, its architecture and its batches, such as those of `batches.padded` under masks.
2. Run `python -m conformance.goldens.make fixtures --only NAME`, which stores this golden in `fixtures/` and adds it to the
   manifest. Without `--only`, all goldens are computed again and the manifest is written last; this needs the extra `real`, for
   `minilm`.
3. Run `bert-conformance golden verify` and `conformance/tests/test_golden_make.py`.
"""

from collections.abc import Mapping
from typing import Any

from conformance.goldens.batches import of_edges, padded, with_further_inputs, with_ids_of_padding, with_states
from conformance.goldens.recipe import Recipe, generated, packaged
from conformance.model.architecture import Architecture

_MASKS = ("111111111111", "111111110000", "001111111111", "110111011010")  # no padding, right padding, left padding, holes
_OF_SIXTEEN = ("1111111111111111", "1111111111000000", "0000011111111111", "0001111111111000", "1101101011101101")
_BEYOND_SIXTEEN = ("111111111111111111111", "111111110000000000000", "000111111111111111111", "110111011010000000000")
_OF_DECODERS = ("1111111111111111", "1111111111000000", "0001111111111000", "1101101011101101")
_OF_SENTENCES = ("111111111111", "111111110000", "110111011010", "111110000000")


def _network(
    vocabulary: int, hidden: int, layers: int, attention_heads: int, intermediate: int, positions: int, **settings: Any
) -> Architecture:
    """Return a BERT of these sizes with masked-LM, next-sentence and classification heads, unless settings say otherwise."""
    heads = ("masked_lm", "next_sentence", "classification")
    sizes = Architecture(vocabulary, hidden, layers, attention_heads, intermediate, positions, heads=heads)
    return sizes.with_(**settings)


TINY = _network(96, 32, 2, 4, 64, 32, num_labels=3)
SINUSOIDAL = Architecture(
    *(64, 32, 2, 4, 128, 12),  # as many positions as the batch, so that implementations limited to its length can be judged
    type_vocab_size=3,
    position_embedding_type="sinusoidal",
    embedding_norm=False,
    pooler=False,
    heads=("plain_masked_lm", "plain_next_sentence"),
)
_RELATIVE = _network(64, 32, 2, 4, 64, 24, position_embedding_type="relative_key")
_DECODER = TINY.with_(is_decoder=True, heads=("masked_lm",), pooler=False, num_labels=2)

_ROWS: tuple[Recipe, ...] = (
    generated(
        "tiny",
        "Two narrow layers, every way of padding: none, right, left, both sides, holes, almost everything.",
        TINY,
        padded(*_OF_SIXTEEN, "1100000000000000"),
        is_complete=True,
    ),
    generated(
        "edges",
        "Every length from 1 to the most that the network takes, masks with holes, every id, odd texts. "
        "Its batches differ in length, so that one runner is called with many shapes: an implementation that is right at one "
        "length alone fails. Kernels change their path at powers of two; the batches' lengths lie on both sides of each.",
        _network(96, 24, 2, 3, 40, 64, type_vocab_size=3, num_labels=3),
        of_edges,
    ),
    generated(
        "deep",
        "Twelve narrow layers, as many as BERT base: what grows or is lost from layer to layer.",
        _network(64, 24, 12, 3, 96, 16),
        padded(*_MASKS),
    ),
    generated(
        "wide",
        "One layer of BERT base's width: sums as long as BERT base's.",
        _network(64, 768, 1, 12, 3072, 16),
        padded("11111111", "11111000", "01110110"),
    ),
    generated(
        "sinusoidal",
        "A BERT of another architecture, that of many tutorials. Sinusoidal positions, no norm on the embeddings, token types 1 "
        "and 2 with 0 for padding, no pooler, and heads of one linear layer and a log-softmax each. The sinusoids are of the "
        "order of 1, so hidden states are as well.",
        SINUSOIDAL,
        with_ids_of_padding("111111111111", "111111110000", "111110000000", "111111111110"),
        version=2,
        hidden=1.0,
        is_complete=True,
    ),
    generated(
        "tanh",
        "GELU in its tanh form, as later checkpoints have it: a wrong constant in that form shows nowhere else.",
        TINY.with_(hidden_act="gelu_new", type_vocab_size=3),
        padded(*_MASKS),
    ),
    generated(
        "token-heads",
        "What BERT is fine-tuned for that reads every position: token classification, question answering, and the embedding of a "
        "sentence, the normalised mean of its tokens. No pooler.",
        TINY.with_(
            num_hidden_layers=1,
            num_labels=5,
            pooler=False,
            heads=("token_classification", "question_answering"),
            pooling="mean",
            normalize=True,
        ),
        padded("111111111111", "111111111111", "111111110000", "110111011010"),
    ),
    generated(
        "sentence-heads",
        "What BERT is fine-tuned for that reads the first token: multiple choice, and an embedding that is not normalised. Next "
        "sentence without masked LM.",
        TINY.with_(num_hidden_layers=1, heads=("next_sentence", "multiple_choice"), pooling="cls"),
        padded(*_OF_SENTENCES),
    ),
    generated(
        "odd-width",
        "Sizes that are no multiples of a vector's, epsilon 1e-3, ReLU. Hidden states are of deviation 2^-5, so that norm "
        "inputs have a variance near epsilon: with 1e-12 or with 1e-5 in its place results are larger by 15 to 30 %, but "
        "for the masked-LM head's.",
        _network(61, 105, 1, 5, 131, 19, type_vocab_size=4, layer_norm_eps=1e-3, hidden_act="relu", num_labels=5),
        padded("1111111111111", "1111111100000", "0011111111111", "1101110110101"),
        hidden=2.0**-5,
    ),
    generated(
        "narrow-heads",
        "Six heads of 32 where heads of 64 would fit as well: heads that are 64 wide whatever the config says change no "
        "shape but that of scores and probabilities, which few candidates expose. Epsilon 1e-5.",
        _network(64, 192, 3, 6, 320, 16, type_vocab_size=3, layer_norm_eps=1e-5, num_labels=4),
        padded(*_MASKS),
    ),
    generated(
        "position-offset",
        "Position ids start at 3, as RoBERTa's start at 2, so that RoBERTa's own offset, hard-coded, is seen; one token "
        "type and epsilon 1e-5 as RoBERTa has them. The longest row takes the last row of the table.",
        _network(96, 40, 2, 5, 72, 15, type_vocab_size=1, layer_norm_eps=1e-5, num_labels=6, position_offset=3),
        padded(*_MASKS),
    ),
    generated(
        "relative-key",
        "Positions by their distance, in the scores: q · D beside q · k. Two rows are longer than the largest distance of Shaw et "
        "al. 2018, 16, to which these are not clipped.",
        _RELATIVE,
        padded(*_BEYOND_SIXTEEN),
    ),
    generated(
        "relative-key-query",
        "Positions by their distance, in the scores: q · D and k · D beside q · k; a table that is as long as the longest row "
        "needs.",
        _RELATIVE.with_(
            hidden_size=40, num_attention_heads=5, max_position_embeddings=21, position_embedding_type="relative_key_query"
        ),
        padded(*_BEYOND_SIXTEEN),
    ),
    generated(
        "decoder",
        "A decoder: a token attends to itself and to what is before it alone, as in BertLMHeadModel with is_decoder.",
        _DECODER,
        padded(*_OF_DECODERS),
    ),
    generated(
        "cross-attention",
        "A decoder whose layers attend to an encoder's states as well, of another length and with a mask of their own.",
        _DECODER.with_(add_cross_attention=True),
        with_states(*_OF_DECODERS),
    ),
    generated(
        "pruned-heads",
        "Two heads are taken out of the first layer, one out of the second: projections of other widths, and √d as before.",
        TINY.with_(pruned_heads=((0, (0, 2)), (1, (3,)))),
        padded(*_MASKS),
    ),
    generated(
        "further-inputs",
        "Position ids that are given, not counted, and a mask for each query: what a BERT's forward pass may take besides.",
        TINY.with_(type_vocab_size=3),
        with_further_inputs(*_MASKS),
    ),
    generated(
        "regression",
        "A classifier with one label and no problem_type: a regression, whose loss is the mean squared error.",
        TINY.with_(num_hidden_layers=1, heads=("classification",), num_labels=1),
        padded(*_OF_SENTENCES),
    ),
    generated(
        "multi-label",
        "A classifier of several labels that may hold at once, whose loss is the mean binary cross entropy.",
        TINY.with_(num_hidden_layers=1, heads=("classification",), num_labels=5, problem_type="multi_label_classification"),
        padded("1111111111111111", "1111111111000000", "1101101011101101", "1100000000000000"),
    ),
    packaged("minilm", "A real, trained BERT (all-MiniLM-L6-v2) on real sentences."),
)
RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in _ROWS}
