"""The law that WordPiece ids and offsets of drawn texts equal those of the `tokenizers` library.

The vocabulary is small and covers most characters of the drawn texts. Every printable ASCII character is a piece that begins a
word. Letters and digits are also pieces that continue a word, except `q`, `Q` and `7`, so that some words cannot be composed of
pieces. The vocabulary includes accented letters, composed and decomposed, and a few characters of other scripts.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.checks.laws.law import Law
from conformance.checks.search.subject import Subject
from conformance.errors import Unsupported
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.pretraining import SPECIAL
from conformance.numerics.memo import IdentityKey
from conformance.results.example import Example, LawBroken
from conformance.results.termination import call_candidate

_ASCII = [chr(c) for c in range(0x21, 0x7F)]
_INNER = [c for c in _ASCII if c.isalnum() and c not in "q7Q"]
_ACCENTED = list("àâäçèéêëíîïñóôöùúûüÿßÅÉÖÜİıŒœšžΑΣασς")
_OTHER = list("一丁中国文字語漢日本カタひらがな한국어абвгдж“”—…¿¡€ﬁ")
_COMBINING = ["\u0301", "\u0308", "\u0327", "\u0307"]
_WHOLE_WORDS = (
    *("the", "cat", "cafe", "café", "naive", "naïve", "love", "hate", "play", "un", "able", "ing", "ed"),
    *("Istanbul", "strasse"),
)

VOCABULARY: tuple[str, ...] = tuple(
    dict.fromkeys(
        [
            *SPECIAL,
            *_ASCII,
            *(f"##{c}" for c in _INNER),
            *_ACCENTED,
            *(f"##{c}" for c in _ACCENTED),
            *_OTHER,
            *(f"##{c}" for c in _OTHER),
            *_COMBINING,
            *(f"##{c}" for c in _COMBINING),
            *_WHOLE_WORDS,
            *(f"##{w}" for w in _WHOLE_WORDS),
        ]
    )
)


Read = Callable[[str], tuple[Sequence[int], Sequence[tuple[int, int]] | None]]

LONGEST_WORD = 100  # characters; Google's tokenizer, and every later one, maps a longer word as a whole to [UNK]

_WORDS = (
    *("The", "café", "cafe\u0301", "naïve", "lovable", "İstanbul", "Straße", "ΣΑΣ", "playing"),
    *("漢字", "日本語", "カタカナ", "한국어"),
)
_SIGNS = ("!", "...", "$9.99", "a^b", "it's", "—", "“x”", "¿qué?", "x@y.z", "C++", "~`|", "#7", "🤗", "e\u0301\u0301", "ﬁn")
_SPACES = (" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "\u3000", "\u2028", "")
_UNSEEN = ("\x00", "\x07", "\x1b", "\x7f", "\u00ad", "\u200b", "\u200d", "\ufeff", "\ufffd", "\ue000", "\U000e0001")


@lru_cache
def settled() -> tuple[str, ...]:
    """Return the characters that have had the same category since Unicode 3.2, so that all implementations agree on them.

    A character assigned later is a letter to one library and unassigned to another, depending on their Unicode versions.
    """
    old = unicodedata.ucd_3_2_0
    every = map(chr, [*range(0xD800), *range(0xE000, 0x30000)])
    return tuple(c for c in every if old.category(c) == unicodedata.category(c) != "Cn")


def texts() -> st.SearchStrategy[str]:
    """Return a strategy for texts of words, punctuation, spaces, invisible characters, very long words and arbitrary Unicode."""
    long = st.builds(lambda c, n: c * n, st.sampled_from("aé漢"), st.integers(LONGEST_WORD - 2, LONGEST_WORD + 2))
    part = st.one_of(
        st.text(st.sampled_from(settled()), max_size=8),
        st.text("aAeéE\u0301q7 -", max_size=8),
        st.sampled_from((*_WORDS, *_SIGNS, *_SPACES, *_UNSEEN)),
        long,
    )
    return st.lists(part, max_size=8).map("".join).filter(lambda text: not any(name in text for name in SPECIAL))


@lru_cache
def reference(lower_case: bool, strip_accents: bool | None) -> Read:
    """Return the reading function of the library's BERT tokenizer with the vocabulary of these laws."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    pieces = {piece: i for i, piece in enumerate(VOCABULARY)}
    model = models.WordPiece(pieces, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD)
    made = Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lower_case
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def read(text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        encoded = made.encode(text, add_special_tokens=False)
        return encoded.ids, encoded.offsets

    return read


@dataclass(frozen=True)
class _LawOfTexts(Law):
    """A law whose examples are texts; the batch of an example contains the ids that the reference assigns to its text."""

    def examples(self, architecture: Architecture) -> st.SearchStrategy[Example]:
        """Return a strategy for a text and the options of the normalizer."""
        return st.builds(_example, texts(), st.booleans(), st.sampled_from((None, True, False)))

    def boundaries(self, architecture: Architecture) -> Sequence[st.SearchStrategy[Example]]:
        """Return no strategies, since the drawn texts include words near the maximal length."""
        return ()


def _example(text: str, lower_case: bool, strip_accents: bool | None) -> Example:
    ids, _ = reference(lower_case, strip_accents)(text)
    framed = [VOCABULARY.index("[CLS]"), *ids, VOCABULARY.index("[SEP]")]
    return Example(Batch.of({"input_ids": [framed]}), {"text": text, "lower_case": lower_case, "strip_accents": strip_accents})


def _brings_a_tokenizer(subject: Subject) -> None:
    if getattr(subject.candidate, "tokenizer", None) is None:
        raise Unsupported("it has no tokenizer")


@_LawOfTexts.of(
    "tokenization",
    proves="ids and offsets of drawn texts equal those of the `tokenizers` library, for candidates with a tokenizer",
    catches="accents or CJK characters that are treated differently; offsets that include stripped characters",
    remedy="Follow BertTokenizer: clean, split CJK characters, lower-case, strip accents, split at punctuation, WordPiece.",
    applies=_brings_a_tokenizer,
    affords=5,
)
def tokenization(subject: Subject, example: Example) -> float:
    """WordPiece ids and offsets are compared (Devlin et al. 2019, section 3; Wu et al. 2016).

    A candidate with a tokenizer has an attribute `tokenizer(vocabulary, *, lower_case, strip_accents)`. Its arguments are the list
    of pieces by id and the two options of BERT's normalizer (if `strip_accents` is None, accents are stripped if `lower_case` is
    set). It returns a function of a text that returns the ids without special tokens, and the offsets (begin, end) in characters of
    the text, or None instead of the offsets. Texts that contain the spelling of a special token are excluded, since implementations
    may differ in whether they read it as one.
    """
    text, switches = example.variation["text"], {k: v for k, v in example.variation.items() if k != "text"}
    ids, offsets = reference(**switches)(text)
    made = IdentityKey(subject.candidate)
    found_ids, found_offsets = call_candidate(lambda: plain_reading(_made(made, **switches)(text)))
    for what, found, expected in (("ids", found_ids, list(ids)), ("offsets", found_offsets, list(offsets or ()))):
        if found is not None and found != expected:
            rendered = f"{what} of {text!r} with {_rendered(switches)} are {_shown(what, found)}, expected {_shown(what, expected)}"
            raise LawBroken(rendered, script=_script(text, switches, expected, what))
    return 0.0


@lru_cache(maxsize=6)
def _made(candidate: IdentityKey[Any], lower_case: bool, strip_accents: bool | None) -> Read:
    made: Read = candidate.value.tokenizer(list(VOCABULARY), lower_case=lower_case, strip_accents=strip_accents)
    return made


def plain_reading(reading: Any) -> tuple[list[int], list[tuple[int, int]] | None]:
    """Return ids and offsets as Python integers; raise whatever the candidate raises, and `OverflowError` beyond int64."""
    ids, offsets = reading
    plain = np.array([int(i) for i in ids], np.int64).tolist()
    return plain, None if offsets is None else [(int(begin), int(end)) for begin, end in offsets]


def _rendered(switches: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in switches.items())


def _shown(what: str, found: list[Any]) -> str:
    """Return ids with their pieces, or offsets, as text."""
    if what == "offsets":
        return str(found)
    return str([f"{i} {VOCABULARY[i]}" if 0 <= i < len(VOCABULARY) else str(i) for i in found])


def _script(text: str, switches: dict[str, Any], expected: list[Any], what: str) -> tuple[str, ...]:
    return (
        "from conformance.checks.laws.tokenization import VOCABULARY",
        "",
        f"ids, offsets = candidate.tokenizer(list(VOCABULARY), {_rendered(switches)})({text!r})",
        "print(ids, offsets)",
        f"assert {'list(ids)' if what == 'ids' else '[tuple(o) for o in offsets]'} == {expected!r}",
    )
