"""The token ids of a corpus on disk: one array of ids, and the ends of utterances and conversations."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from conformance import UsageError

Ids = npt.NDArray[np.signedinteger]
_AT_ONCE = 256  # conversations that are tokenized together


@dataclass(frozen=True)
class Corpus:
    """Utterances as token ids, without special tokens.

    Attributes:
        ids: token ids of all utterances, concatenated.
        starts: utterance i is ids[starts[i] : starts[i + 1]].
        firsts: indices of the utterances that are followed by another one in their conversation: the consecutive pairs.
    """

    ids: Ids
    starts: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]

    @property
    def size(self) -> int:
        """The number of utterances."""
        return len(self.starts) - 1

    def utterance(self, i: int) -> Ids:
        """Return the token ids of utterance i."""
        return self.ids[self.starts[i] : self.starts[i + 1]]


def write(folder: Path, conversations: Iterable[list[str]], tokenizer: Tokenizer) -> None:
    """Tokenize conversations and write them to files; the utterances around one without tokens are not consecutive."""
    remaining, ends, utterance = iter(conversations), 0, 0
    tokenizer.encode_special_tokens = True  # "[SEP]" in a text is five characters, not the special token
    with open(folder / "ids", "wb") as ids, open(folder / "starts", "wb") as starts, open(folder / "firsts", "wb") as firsts:
        np.array([0], np.int64).tofile(starts)
        while some := list(islice(remaining, _AT_ONCE)):
            flat = [text for conversation in some for text in conversation]
            encoded = iter(tokenizer.encode_batch_fast(flat, add_special_tokens=False))
            for conversation in some:
                before = False  # whether the previous utterance has tokens
                for _ in conversation:
                    found = np.array(next(encoded).ids, np.int32)
                    if before and found.size:
                        np.array([utterance - 1], np.int64).tofile(firsts)
                    before = found.size > 0
                    if before:
                        found.tofile(ids)
                        ends, utterance = ends + found.size, utterance + 1
                        np.array([ends], np.int64).tofile(starts)


def read(folder: Path) -> Corpus:
    """Return the corpus in a folder, mapped into memory.

    Raises:
        UsageError: the corpus is too small for examples.
    """
    sizes = {name: (folder / name).stat().st_size for name in ("ids", "starts", "firsts")}
    if not sizes["firsts"]:
        raise UsageError("the corpus has no two consecutive utterances: there is nothing to train on")
    corpus = Corpus(
        np.memmap(folder / "ids", np.int32, "r"),
        np.memmap(folder / "starts", np.int64, "r"),
        np.memmap(folder / "firsts", np.int64, "r"),
    )
    if corpus.size < 3:
        raise UsageError("the corpus has two utterances: there is none that does not follow")
    return corpus


def split(corpus: Corpus, share: float) -> tuple[Corpus, Corpus | None]:
    """Return the training part and the held-out part, about `share` of the utterances, taken from the end.

    The parts share no pair. Nothing is held out if either part would be too small for examples.
    """
    cut = round(corpus.size * (1 - share))
    while np.searchsorted(corpus.firsts, cut) > np.searchsorted(corpus.firsts, cut - 1):  # `cut` follows the utterance before it
        cut -= 1
    pairs = int(np.searchsorted(corpus.firsts, cut))
    if not 0 < pairs < len(corpus.firsts) or min(cut, corpus.size - cut) < 3:
        return corpus, None
    start = corpus.starts[cut]
    first = Corpus(corpus.ids[:start], corpus.starts[: cut + 1], corpus.firsts[:pairs])
    return first, Corpus(corpus.ids[start:], corpus.starts[cut:] - start, corpus.firsts[pairs:] - cut)
