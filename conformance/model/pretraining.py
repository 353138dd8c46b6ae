"""Pre-training data of BERT, and the interface of a pipeline that makes it from a corpus (Devlin et al. 2019, 3.1, A.1, A.2).

A row is [CLS] A [SEP], or [CLS] A [SEP] B [SEP], where B follows A in the corpus half of the time. 15 % of the tokens of A and B,
or another declared share, are chosen and labelled; of these, 80 % are replaced by [MASK], 10 % by a random token, and 10 % are left
unchanged.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from conformance.model.batch import IGNORED_LABEL, Batch

CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
NEXT = 0.5
CONTINUES = "##"  # prefix of a piece that continues a word
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class PretrainingCorpus:
    """A corpus from which training examples are to be made.

    Attributes:
        conversations: each is a sequence of utterances; words consist of lower-case letters and are separated by single spaces.
        vocabulary: WordPiece pieces by id; pieces that continue a word start with `##`. [PAD] is 0; [UNK], [CLS], [SEP] and [MASK]
            may have any ids. Every word is split greedily into the longest matching pieces.
        length: S, the largest number of tokens per row, including special tokens.
        seed: seed of all random choices, together with the epoch.

    Example:
        >>> corpus = PretrainingCorpus((("ab cd", "cdab"),), ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "cd", "##ab"), 16)
        >>> corpus.vocabulary.index("[MASK]")
        4
    """

    conversations: tuple[tuple[str, ...], ...]
    vocabulary: tuple[str, ...]
    length: int
    seed: int = 0


@dataclass(frozen=True)
class PretrainingConventions:
    """The properties in which a correct pipeline may differ from Hugging Face's.

    Attributes:
        ignored_label: label of a token that was not chosen.
        next_label: label of a pair whose second sentence follows the first; the label of any other pair is 1 − `next_label`.
        token_types: the token types of [CLS] A [SEP] and of B [SEP].
        special_replacements: whether random tokens are drawn from the whole vocabulary, as in BERT's own code and Hugging Face's;
            otherwise from the tokens that are not special.
        dynamic: whether tokens are chosen anew in every epoch (Liu et al. 2019, section 4.1).
        chosen: share of the tokens that are chosen, or of the words.
        whole_words: whether words are chosen, with all of their tokens; what replaces a token is drawn for each token.

    Example:
        >>> PretrainingConventions(ignored_label=0, next_label=1).token_types
        (0, 1)
    """

    ignored_label: int = IGNORED_LABEL
    next_label: int = 0
    token_types: tuple[int, int] = (0, 1)
    special_replacements: bool = False
    dynamic: bool = False
    chosen: float = CHOSEN
    whole_words: bool = False


@dataclass(frozen=True)
class PretrainingData:
    """A pipeline that makes pre-training examples from a corpus; a candidate provides it as its attribute `pretraining_data`.

    Attributes:
        batches: maps a corpus and the number of an epoch, starting at 0, to the batches of that epoch in the order of training.
            Each is a `Batch` or a mapping of names to integer arrays: `input_ids` and `labels`, (B, S); `token_type_ids` and
            `attention_mask`, (B, S), zeros and ones if omitted; `next_sentence_label`, (B,), if rows are pairs. Every utterance
            that another one follows in its conversation starts a row, except those in a last batch that is dropped.
        conventions: the properties in which the pipeline differs from Hugging Face's.

    Example:
        >>> rows = {"input_ids": [[2, 4, 6, 3]], "labels": [[-100, 5, -100, -100]]}
        >>> data = PretrainingData(lambda corpus, epoch: [rows])
        >>> data.conventions.dynamic
        False
    """

    batches: Callable[[PretrainingCorpus, int], Iterable[Batch | Mapping[str, Any]]]
    conventions: PretrainingConventions = PretrainingConventions()
