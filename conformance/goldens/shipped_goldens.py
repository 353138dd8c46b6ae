"""The shipped goldens: the recipe of each is a row of one table.

Goldens that are fast to run come first, and those that detect hard-coded numbers come after the general ones.

To add a golden:

1. Add a row to `_ROWS` with its purpose, its architecture and the masks of its batch, or write a module like `edges` if more is
   needed.
2. Run `python -m conformance.goldens.make fixtures --only NAME`, which stores this golden in `fixtures/` and adds it to the
   manifest. Without `--only`, all goldens are computed again and the manifest is written last; this needs the extra `real`, for
   `minilm`.
3. Run `bert-conformance golden verify` and `conformance/tests/test_golden_make.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.goldens import edges, minilm, sinusoidal
from conformance.goldens.batches import Stream, batch, drawn
from conformance.goldens.recipe import Generated, Recipe
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch

MASKS = ("111111111111", "111111110000", "001111111111", "110111011010")  # no padding, right padding, left padding, holes


@dataclass(frozen=True)
class _Padded:
    """A function that makes one batch of random ids under masks.

    Attributes:
        masks: a string for each row, of `1` (attended to) and `0` (padding).
        further: function that converts that batch, given a seed and the architecture, to the golden's batches; or None.
    """

    architecture: Architecture
    masks: Sequence[str]
    further: Callable[[Mapping[str, Batch], int, Architecture], Mapping[str, Batch]] | None = None

    def __call__(self, seed: int) -> Mapping[str, Batch]:
        padded = {"padded": batch(seed, self.architecture, drawn(self.masks))}
        return self.further(padded, seed, self.architecture) if self.further else padded


def _with_states(padded: Mapping[str, Batch], seed: int, a: Architecture) -> Mapping[str, Batch]:
    """Add encoder states of standard deviation 1 that every format represents exactly, with their own mask."""
    mask = drawn(("11111111111", "11111110000", "00111111111", "10110111010"))
    states = Stream(seed, "encoder_hidden_states").normals((*mask.shape, a.hidden_size))
    return {n: replace(b, encoder_hidden_states=states, encoder_attention_mask=mask) for n, b in padded.items()}


def _with_further_inputs(padded: Mapping[str, Batch], seed: int, a: Architecture) -> Mapping[str, Batch]:
    """Return one batch with random position ids, and one with a mask for each query; every token attends at least to itself."""
    (given,) = padded.values()
    mask = np.asarray(given.attention_mask)
    ids = Stream(seed, "position_ids").integers(mask.shape, 0, a.max_position_embeddings)
    pairs = Stream(seed, "attention_mask").integers((*mask.shape, mask.shape[1]), 0, 3) > 0
    pairs = (pairs | np.eye(mask.shape[1], dtype=np.bool_)) & (mask[:, :, None] & mask[:, None, :] == 1)
    return {"positions": replace(given, position_ids=ids), "pairs": replace(given, attention_mask=pairs.astype(np.int64))}


def _row(
    name: str, about: str, architecture: Architecture, masks: Sequence[str] = MASKS, further: Any = None, **options: Any
) -> Generated:
    """Return a recipe with one batch under masks; `further` converts that batch to the golden's batches."""
    return Generated(name, about, architecture, _Padded(architecture, tuple(masks), further), **options)


def _network(**sizes: Any) -> Architecture:
    """Return a BERT with masked-LM, next-sentence and classification heads, and with two labels unless stated otherwise."""
    return Architecture(**{"num_labels": 2, "heads": ("masked_lm", "next_sentence", "classification"), **sizes})


TINY = _row(
    "tiny",
    "Two narrow layers, every way of padding: none, right, left, both sides, holes, almost everything.",
    _network(
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=3,
    ),
    ("1111111111111111", "1111111111000000", "0000011111111111", "0001111111111000", "1101101011101101", "1100000000000000"),
    is_complete=True,
)

_RELATIVE = _network(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=24,
    position_embedding_type="relative_key",
)

_DECODER = TINY.architecture.with_(is_decoder=True, heads=("masked_lm",), pooler=False, num_labels=2)

_ROWS: tuple[Recipe, ...] = (
    TINY,
    edges.RECIPE,
    _row(
        "deep",
        "Twelve narrow layers, as many as BERT base: what grows or is lost from layer to layer.",
        _network(
            vocab_size=64,
            hidden_size=24,
            num_hidden_layers=12,
            num_attention_heads=3,
            intermediate_size=96,
            max_position_embeddings=16,
        ),
    ),
    _row(
        "wide",
        "One layer of BERT base's width: sums as long as BERT base's.",
        _network(
            vocab_size=64,
            hidden_size=768,
            num_hidden_layers=1,
            num_attention_heads=12,
            intermediate_size=3072,
            max_position_embeddings=16,
        ),
        ("11111111", "11111000", "01110110"),
    ),
    sinusoidal.RECIPE,
    _row(
        "tanh",
        "GELU in its tanh form, as later checkpoints have it: a wrong constant in that form shows nowhere else.",
        TINY.architecture.with_(hidden_act="gelu_new", type_vocab_size=3),
    ),
    _row(
        "token-heads",
        "What BERT is fine-tuned for that reads every position: token classification, question answering, and the embedding of a "
        "sentence, the normalised mean of its tokens. No pooler.",
        TINY.architecture.with_(
            num_hidden_layers=1,
            num_labels=5,
            pooler=False,
            heads=("token_classification", "question_answering"),
            pooling="mean",
            normalize=True,
        ),
        ("111111111111", "111111111111", "111111110000", "110111011010"),
    ),
    _row(
        "sentence-heads",
        "What BERT is fine-tuned for that reads the first token: multiple choice, and an embedding that is not normalised. Next "
        "sentence without masked LM.",
        TINY.architecture.with_(num_hidden_layers=1, heads=("next_sentence", "multiple_choice"), pooling="cls"),
        ("111111111111", "111111110000", "110111011010", "111110000000"),
    ),
    _row(
        "odd-width",
        "Sizes that are no multiples of a vector's, epsilon 1e-3, ReLU. Hidden states are of deviation 2^-5, so that norm "
        "inputs have a variance near epsilon: with 1e-12 or with 1e-5 in its place results are larger by 15 to 30 %, but "
        "for the masked-LM head's.",
        _network(
            vocab_size=61,
            hidden_size=105,
            num_hidden_layers=1,
            num_attention_heads=5,
            intermediate_size=131,
            max_position_embeddings=19,
            type_vocab_size=4,
            layer_norm_eps=1e-3,
            hidden_act="relu",
            num_labels=5,
        ),
        ("1111111111111", "1111111100000", "0011111111111", "1101110110101"),
        hidden=2.0**-5,
    ),
    _row(
        "narrow-heads",
        "Six heads of 32 where heads of 64 would fit as well: heads that are 64 wide whatever the config says change no "
        "shape but that of scores and probabilities, which few candidates expose. Epsilon 1e-5.",
        _network(
            vocab_size=64,
            hidden_size=192,
            num_hidden_layers=3,
            num_attention_heads=6,
            intermediate_size=320,
            max_position_embeddings=16,
            type_vocab_size=3,
            layer_norm_eps=1e-5,
            num_labels=4,
        ),
    ),
    _row(
        "position-offset",
        "Position ids start at 3, as RoBERTa's start at 2, so that RoBERTa's own offset, hard-coded, is seen; one token "
        "type and epsilon 1e-5 as RoBERTa has them. The longest row takes the last row of the table.",
        _network(
            vocab_size=96,
            hidden_size=40,
            num_hidden_layers=2,
            num_attention_heads=5,
            intermediate_size=72,
            max_position_embeddings=15,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            num_labels=6,
            position_offset=3,
        ),
    ),
    _row(
        "relative-key",
        "Positions by their distance, in the scores: q · D beside q · k. Two rows are longer than the largest distance of Shaw et "
        "al. 2018, 16, to which these are not clipped.",
        _RELATIVE,
        ("111111111111111111111", "111111110000000000000", "000111111111111111111", "110111011010000000000"),
    ),
    _row(
        "relative-key-query",
        "Positions by their distance, in the scores: q · D and k · D beside q · k; a table that is as long as the longest row "
        "needs.",
        _RELATIVE.with_(
            hidden_size=40, num_attention_heads=5, max_position_embeddings=21, position_embedding_type="relative_key_query"
        ),
        ("111111111111111111111", "111111110000000000000", "000111111111111111111", "110111011010000000000"),
    ),
    _row(
        "decoder",
        "A decoder: a token attends to itself and to what is before it alone, as in BertLMHeadModel with is_decoder.",
        _DECODER,
        ("1111111111111111", "1111111111000000", "0001111111111000", "1101101011101101"),
    ),
    _row(
        "cross-attention",
        "A decoder whose layers attend to an encoder's states as well, of another length and with a mask of their own.",
        _DECODER.with_(add_cross_attention=True),
        ("1111111111111111", "1111111111000000", "0001111111111000", "1101101011101101"),
        further=_with_states,
    ),
    _row(
        "pruned-heads",
        "Two heads are taken out of the first layer, one out of the second: projections of other widths, and √d as before.",
        TINY.architecture.with_(pruned_heads=((0, (0, 2)), (1, (3,)))),
    ),
    _row(
        "further-inputs",
        "Position ids that are given, not counted, and a mask for each query: what a BERT's forward pass may take besides.",
        TINY.architecture.with_(type_vocab_size=3),
        further=_with_further_inputs,
    ),
    _row(
        "regression",
        "A classifier with one label and no problem_type: a regression, whose loss is the mean squared error.",
        TINY.architecture.with_(num_hidden_layers=1, heads=("classification",), num_labels=1),
        ("111111111111", "111111110000", "110111011010", "111110000000"),
    ),
    _row(
        "multi-label",
        "A classifier of several labels that may hold at once, whose loss is the mean binary cross entropy.",
        TINY.architecture.with_(
            num_hidden_layers=1, heads=("classification",), num_labels=5, problem_type="multi_label_classification"
        ),
        ("1111111111111111", "1111111111000000", "1101101011101101", "1100000000000000"),
    ),
    minilm.RECIPE,
)
RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in _ROWS}
