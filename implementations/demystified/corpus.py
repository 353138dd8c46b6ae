"""The token ids of a corpus: one array of ids, and the starts of utterances and of pairs."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from conformance import UsageError

Ids = npt.NDArray[np.signedinteger]


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


def tokenized(conversations: Iterable[list[str]], tokenizer: Tokenizer) -> Corpus:
    """Return the token ids of conversations; the utterances around one without tokens are not consecutive.

    Raises:
        UsageError: the corpus is too small for examples.
    """
    tokenizer.encode_special_tokens = True  # "[SEP]" in a text is five characters, not the special token
    ids: list[int] = []
    starts, firsts = [0], []
    for conversation in conversations:
        before = False  # whether the previous utterance has tokens
        for encoded in tokenizer.encode_batch_fast(conversation, add_special_tokens=False):
            if before and encoded.ids:
                firsts.append(len(starts) - 2)
            before = bool(encoded.ids)
            if before:
                ids += encoded.ids
                starts.append(len(ids))
    if not firsts:
        raise UsageError("the corpus has no two consecutive utterances: there is nothing to train on")
    if len(starts) < 4:
        raise UsageError("the corpus has two utterances: there is none that does not follow")
    return Corpus(np.array(ids, np.int32), np.array(starts, np.int64), np.array(firsts, np.int64))


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
