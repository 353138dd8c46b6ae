"""Conversations, whatever they are read from: what is kept of them, and what is left out."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_NAMED = 3  # malformed lines that are shown, of each kind

Conversation = list[str]


@dataclass
class Skipped:
    """What was left out of a corpus: how many lines of each kind, and the first of them."""

    counts: Counter[str] = field(default_factory=Counter)
    places: list[str] = field(default_factory=list)

    def add(self, kind: str, where: str) -> None:
        """Count one."""
        self.counts[kind] += 1
        if self.counts[kind] <= _NAMED:
            self.places.append(f"{where}: {kind}")

    def clear(self) -> None:
        """Begin to count anew."""
        self.counts.clear()
        self.places.clear()


def divided(texts: Iterable[str]) -> Iterator[Conversation]:
    """Utterances, their white space made single spaces; a blank one ends a conversation."""
    part: Conversation = []
    for text in texts:
        utterance = " ".join(text.split())
        if utterance:
            part.append(utterance)
            continue
        yield part
        part = []
    yield part
