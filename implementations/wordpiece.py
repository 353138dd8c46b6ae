"""BERT's tokenizer from scratch: clean a text, split it into words, and cover each with the longest entries of a vocabulary.

The code follows Google's `tokenization.py` (BasicTokenizer and WordpieceTokenizer) and adds offsets: every character of the
normalised text keeps the index of the original character it came from. Google's code removes the categories Cc and Cf; this also
removes private use (Co), as Hugging Face's `tokenizers` does, and surrogates (Cs), which no valid text has. Unassigned characters
(Cn), which depend on the version of Unicode, are kept, as in both.
"""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

LONGEST_WORD = 100

Offsets = list[tuple[int, int]]


@dataclass(frozen=True)
class Char:
    """A character, and the index in the text that it comes from."""

    char: str
    at: int


def tokenizer(
    vocabulary: Sequence[str], *, lower_case: bool, strip_accents: bool | None
) -> Callable[[str], tuple[list[int], Offsets]]:
    """Return a function that maps a text to token ids, without special tokens, and the (begin, end) of each in the text."""
    pieces = {piece: i for i, piece in enumerate(vocabulary)}
    stripped = lower_case if strip_accents is None else strip_accents

    def read(text: str) -> tuple[list[int], Offsets]:
        chars = cleaned(text)
        chars = without_accents(chars) if stripped else chars
        chars = lowered(chars) if lower_case else chars
        found = [piece for word in words(chars) for piece in wordpieces(word, pieces)]
        return [i for i, _ in found], [place for _, place in found]

    return read


def cleaned(text: str) -> list[Char]:
    """Return the text without control characters, with spaces for whitespace and around CJK ideographs."""
    found: list[Char] = []
    for at, c in enumerate(text):
        if c in "\0\ufffd" or _is_control(c):
            continue
        if _is_space(c):
            found.append(Char(" ", at))
        elif _is_ideograph(c):
            found += [Char(" ", at), Char(c, at), Char(" ", at)]
        else:
            found.append(Char(c, at))
    return found


def without_accents(chars: list[Char]) -> list[Char]:
    """Return the text decomposed (NFD), without nonspacing marks (category Mn)."""
    decomposed = [Char(part, c.at) for c in chars for part in unicodedata.normalize("NFD", c.char)]
    return [c for c in decomposed if unicodedata.category(c.char) != "Mn"]


def lowered(chars: list[Char]) -> list[Char]:
    """Return each character in lower case, which may be several characters."""
    return [Char(part, c.at) for c in chars for part in c.char.lower()]


def words(chars: list[Char]) -> Iterator[list[Char]]:
    """Yield the words between spaces; a punctuation mark is a word of its own."""
    word: list[Char] = []
    for c in chars:
        ends = c.char.isspace() or _is_punctuation(c.char)
        if ends and word:
            yield word
            word = []
        if _is_punctuation(c.char):
            yield [c]
        elif not ends:
            word.append(c)
    if word:
        yield word


def wordpieces(word: list[Char], pieces: dict[str, int]) -> list[tuple[int, tuple[int, int]]]:
    """Return the longest matching pieces in sequence; the whole word is [UNK] if none matches or if it is too long."""
    unknown = [(pieces["[UNK]"], (word[0].at, word[-1].at + 1))]
    if len(word) > LONGEST_WORD:
        return unknown
    found, start = [], 0
    while start < len(word):
        end = len(word)
        while end > start and _spelled(word, start, end) not in pieces:
            end -= 1
        if end == start:
            return unknown
        found.append((pieces[_spelled(word, start, end)], (word[start].at, word[end - 1].at + 1)))
        start = end
    return found


def _spelled(word: list[Char], start: int, end: int) -> str:
    return ("##" if start else "") + "".join(c.char for c in word[start:end])


def _is_space(c: str) -> bool:
    return c in " \t\n\r" or unicodedata.category(c) == "Zs"


def _is_control(c: str) -> bool:
    return c not in "\t\n\r" and unicodedata.category(c) in ("Cc", "Cf", "Co", "Cs")


def _is_punctuation(c: str) -> bool:
    """Return whether a character is Unicode punctuation, or an ASCII symbol other than a letter or digit."""
    return "!" <= c <= "/" or ":" <= c <= "@" or "[" <= c <= "`" or "{" <= c <= "~" or unicodedata.category(c).startswith("P")


_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def _is_ideograph(c: str) -> bool:
    """Return whether a character is a CJK Unified Ideograph; kana and hangul are not, as they are written with spaces."""
    return any(first <= ord(c) <= last for first, last in _IDEOGRAPHS)
