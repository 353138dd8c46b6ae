"""What BERT is pre-trained on, and what a pipeline that makes it of a corpus says of itself (Devlin et al. 2019, 3.1, A.1, A.2).

A row is [CLS] A [SEP], or [CLS] A [SEP] B [SEP] where B follows A in the corpus half of the time. 15 % of the tokens of A and B are
chosen and get labels; of these 80 % are shown as [MASK], 10 % as a random token, 10 % as they are.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from conformance.model.batch import IGNORED_LABEL, Batch

CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
NEXT = 0.5
CONTINUES = "##"  # what a piece begins with that continues a word
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class PretrainingCorpus:
    """A corpus that examples are to be made of.

    Attributes:
        conversations: each has utterances, in order; words of lower-case letters are separated by single spaces.
        vocabulary: WordPiece pieces by id, those that continue a word with `##`; [PAD] is 0, and [UNK], [CLS], [SEP] and [MASK]
            are wherever they are. The longest pieces that match make up every word.
        length: S, the tokens of a row at most, special tokens included.
        seed: what everything that is drawn is a function of, together with the epoch.

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
    """In what a pipeline may differ from Hugging Face's without being wrong.

    Attributes:
        ignored_label: the label of a token that was not chosen.
        next_label: the label of a pair of which the second is the next; that of any other pair is 1 − it.
        token_types: those of A, with [CLS] and its [SEP], and of B with its [SEP].
        special_replacements: whether random tokens are drawn from the whole vocabulary, as in BERT's own code and Hugging Face's;
            else from the tokens that are not special.
        dynamic: whether tokens are chosen anew in every epoch (Liu et al. 2019, section 4.1).

    Example:
        >>> PretrainingConventions(ignored_label=0, next_label=1).token_types
        (0, 1)
    """

    ignored_label: int = IGNORED_LABEL
    next_label: int = 0
    token_types: tuple[int, int] = (0, 1)
    special_replacements: bool = False
    dynamic: bool = False


@dataclass(frozen=True)
class PretrainingData:
    """A pipeline that makes pre-training examples of a corpus: what a candidate brings as its attribute `pretraining_data`.

    Attributes:
        batches: of a corpus and the number of an epoch, from 0 on, its batches in the order of training. Each is a `Batch`, or a
            mapping of its names to arrays of integers: `input_ids` and `labels`, (B, S); `token_type_ids` and `attention_mask`,
            (B, S), zeros and ones where they are left out; `next_sentence_label`, (B,), where rows are pairs. Every utterance
            begins a row that another one follows in its conversation, but for what a dropped last batch would have.
        conventions: in what it differs from Hugging Face's.

    Example:
        >>> rows = {"input_ids": [[2, 4, 6, 3]], "labels": [[-100, 5, -100, -100]]}
        >>> data = PretrainingData(lambda corpus, epoch: [rows])
        >>> data.conventions.dynamic
        False
    """

    batches: Callable[[PretrainingCorpus, int], Iterable[Batch | Mapping[str, Any]]]
    conventions: PretrainingConventions = PretrainingConventions()
