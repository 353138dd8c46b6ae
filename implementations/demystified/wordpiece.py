"""WordPiece trained on the corpus, with the tutorial's special tokens, and its settings except the least frequency of a piece."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import BertWordPieceTokenizer, Tokenizer
from tokenizers.processors import TemplateProcessing

SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")  # ids 0 to 4
PREFIX = "##"


def trained(texts: Callable[[], Iterable[str]], vocabulary_size: int) -> Tokenizer:
    """Return a tokenizer trained on these texts: both sides of each pair, where the tutorial uses the first side only.

    The library numbers pieces such as `##a` in the order of a hash map and breaks ties by these numbers, so that each training
    yields another vocabulary (huggingface/tokenizers#1794). Therefore these pieces are numbered beforehand, for which the texts
    are read twice.
    """
    alphabet = _trained(texts(), 0, SPECIAL)
    letters = sorted(piece for piece in alphabet if piece.startswith(PREFIX))
    vocabulary = _trained(texts(), vocabulary_size, (*SPECIAL, *letters))
    return of(vocabulary)


def of(vocabulary: Mapping[str, int]) -> Tokenizer:
    """Return the tokenizer of a vocabulary, given as ids by piece."""
    found = Tokenizer.from_str(_empty(vocabulary).to_str())
    special = [(piece, vocabulary[piece]) for piece in ("[CLS]", "[SEP]")]
    # The tutorial's segments are 1 and 2; 0 marks padding.
    found.post_processor = TemplateProcessing(
        single="[CLS]:1 $A:1 [SEP]:1", pair="[CLS]:1 $A:1 [SEP]:1 $B:2 [SEP]:2", special_tokens=special
    )
    return found


def pieces(tokenizer: Tokenizer) -> list[str]:
    """Return the vocabulary in the order of its ids."""
    ids: dict[str, int] = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def _trained(texts: Iterable[str], size: int, first: Sequence[str]) -> Mapping[str, int]:
    """Return a trained vocabulary that starts with `first`; if `size` is below the alphabet's size, it has the alphabet only."""
    tokenizer = _empty(None)
    tokenizer.train_from_iterator(
        texts,
        vocab_size=size,
        min_frequency=2,  # the tutorial's 5 would leave 293 of 555 pieces of the package's own dialogues
        limit_alphabet=1000,
        special_tokens=list(first),
        wordpieces_prefix=PREFIX,
        show_progress=False,
    )
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    return vocabulary


def _empty(vocabulary: Any) -> BertWordPieceTokenizer:
    return BertWordPieceTokenizer(vocabulary, clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=True)
