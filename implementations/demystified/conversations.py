"""Conversations from any source, and the record of what was skipped."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_NAMED = 3  # maximum number of malformed lines shown for each kind

Conversation = list[str]


@dataclass
class Skipped:
    """What was skipped in a corpus.

    Attributes:
        counts: number of lines of each kind.
        places: descriptions of the first lines of each kind.
    """

    counts: Counter[str] = field(default_factory=Counter)
    places: list[str] = field(default_factory=list)

    def add(self, kind: str, where: str) -> None:
        """Count one line of a kind."""
        self.counts[kind] += 1
        if self.counts[kind] <= _NAMED:
            self.places.append(f"{where}: {kind}")

    def clear(self) -> None:
        """Reset counts and places."""
        self.counts.clear()
        self.places.clear()


def divided(texts: Iterable[str]) -> Iterator[Conversation]:
    """Yield conversations of utterances with normalised white space; a blank text ends a conversation."""
    part: Conversation = []
    for text in texts:
        utterance = " ".join(text.split())
        if utterance:
            part.append(utterance)
            continue
        yield part
        part = []
    yield part
