"""A correct pipeline of pre-training data, written plainly, and correct pipelines with unusual implementations."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from conformance import Batch, PretrainingConventions, PretrainingCorpus, PretrainingData
from conformance.model.batch import IGNORED_LABEL, Ids

CLS, SEP, PAD = -1, -2, -3  # indices of the special tokens in `Text.stream`
Random = np.random.Generator
Rows = dict[str, Ids]


@dataclass(frozen=True)
class Text:
    """A corpus as token ids.

    Attributes:
        stream: the tokens of all utterances, followed by [PAD], [SEP] and [CLS].
        utterances: for each token, the number of its utterance.
        conversations: for each utterance, the number of its conversation.
        ids: the vocabulary's ids of the pieces.
        continues, is_ordinary: properties of the pieces, as Boolean arrays."""

    stream: Ids
    utterances: list[Ids]
    conversations: list[int]
    ids: dict[str, int]
    continues: Any
    is_ordinary: Any

    @property
    def ordinary(self) -> Ids:
        return np.flatnonzero(self.is_ordinary)

    def firsts(self) -> list[int]:
        """Return the utterances that are followed by another one of the same conversation."""
        return [i for i in range(len(self.utterances) - 1) if self.conversations[i] == self.conversations[i + 1]]


@lru_cache(maxsize=4)
def text_of(corpus: PretrainingCorpus) -> Text:
    """Return the corpus as a `Text`; every piece of its vocabulary has two letters."""
    ids = {piece: i for i, piece in enumerate(corpus.vocabulary)}

    def read(text: str) -> list[int]:
        return [ids[("##" if i else "") + word[i : i + 2]] for word in text.split() for i in range(0, len(word), 2)]

    owners = [c for c, conversation in enumerate(corpus.conversations) for _ in conversation]
    read_ones = [read(text) for conversation in corpus.conversations for text in conversation]
    stream = [i for one in read_ones for i in one]
    utterances = np.split(np.arange(len(stream)), np.cumsum([len(one) for one in read_ones])[:-1])
    stream += [ids["[PAD]"], ids["[SEP]"], ids["[CLS]"]]
    continues, is_special = (np.char.startswith(corpus.vocabulary, begin) for begin in ("##", "["))
    return Text(np.array(stream), utterances, owners, ids, continues, ~is_special)


def next_or_random(text: Text, i: int, rng: Random) -> tuple[int, int]:
    """Return the second utterance and its label: 0 if it is the next utterance, 1 if it is a random one."""
    if rng.random() < 0.5:
        return i + 1, 0
    while (other := int(rng.integers(len(text.utterances)))) == i + 1:
        pass
    return other, 1


def cut_ends(a: Ids, b: Ids, room: int) -> tuple[Ids, Ids]:
    while len(a) + len(b) > room:
        a, b = (a[:-1], b) if len(a) > len(b) else (a, b[:-1])
    return a, b


@dataclass(frozen=True)
class Pairing:
    """How rows are made: `firsts` are the first utterances, `second` gives (second utterance, label), `cut` shortens the pair to
    the room."""

    firsts: Callable[[Text], list[int]] = Text.firsts
    second: Callable[[Text, int, Random], tuple[int, int]] = next_or_random
    cut: Callable[[Ids, Ids, int], tuple[Ids, Ids]] = cut_ends
    is_single: bool = False


@lru_cache(maxsize=64)
def paired(pairing: Pairing, corpus: PretrainingCorpus, epoch: int) -> tuple[Ids, Ids]:
    """Return the padded token offsets of every row, (R, S), and the labels of the pairs, (R,)."""
    text, rng = text_of(corpus), np.random.default_rng((corpus.seed, epoch, 0))
    firsts = pairing.firsts(text)
    places, labels = np.full((len(firsts), 2 * corpus.length), PAD), np.empty(len(firsts), int)
    for row, i in enumerate(firsts):
        second, labels[row] = pairing.second(text, i, rng)
        b = text.utterances[second][: 0 if pairing.is_single else None]
        a, b = pairing.cut(text.utterances[i], b, corpus.length - 3 + pairing.is_single)
        tokens = [CLS, *a, SEP] if pairing.is_single else [CLS, *a, SEP, *b, SEP]
        places[row, : len(tokens)] = tokens
    return places[:, : corpus.length], labels


def each_token(text: Text, places: Ids, rng: Random) -> Any:
    return rng.random(places.shape) < 0.15


def each_word(share: float) -> Callable[[Text, Ids, Random], Any]:
    """Choose whole words, each with the probability `share`."""

    def choose(text: Text, places: Ids, rng: Random) -> Any:
        words = np.cumsum(~text.continues[text.stream[places]], 1)
        return np.take_along_axis(rng.random(places.shape) < share, words - 1, 1)

    return choose


def usual_fates(places: Ids, rng: Random) -> Ids:
    """Return 0 for [MASK], 1 for a random token and 2 for an unchanged token."""
    return np.digitize(rng.random(places.shape), [0.8, 0.9])


def any_ordinary(text: Text, places: Ids, rng: Random) -> Ids:
    return rng.choice(text.ordinary, places.shape)


def unchanged(rows: Rows, text: Text) -> Rows:
    return rows


def in_batches(rows: Rows, size: int = 32) -> Iterator[Any]:
    return (Batch(**{name: array[at : at + size] for name, array in rows.items()}) for at in range(0, len(rows["labels"]), size))


@dataclass(frozen=True)
class Pipeline:
    """A pipeline whose parts can be replaced.

    Attributes:
        pairing: how rows are made.
        choose, fates, drawn: which tokens, (R, S), are chosen, what replaces each of them, and the random tokens.
        change: a function of the padded rows, as arrays by name.
        batches: how rows are yielded in batches.
        conventions: the conventions that the pipeline declares."""

    pairing: Pairing = Pairing()
    choose: Callable[[Text, Ids, Random], Any] = each_token
    fates: Callable[[Ids, Random], Ids] = usual_fates
    drawn: Callable[[Text, Ids, Random], Ids] = any_ordinary
    change: Callable[[Rows, Text], Rows] = unchanged
    batches: Callable[[Rows], Iterator[Any]] = in_batches
    conventions: PretrainingConventions = PretrainingConventions()

    @property
    def pretraining_data(self) -> PretrainingData:
        return PretrainingData(self.epoch, self.conventions)

    def prepare(self, *case: Any) -> Any:
        raise NotImplementedError("it has data and no network")

    def epoch(self, corpus: PretrainingCorpus, epoch: int) -> Iterator[Any]:
        text, rng = text_of(corpus), np.random.default_rng((corpus.seed, epoch, 1))
        places, following = paired(self.pairing, corpus, epoch)
        ids, seps = text.stream[places], places == SEP
        chosen = self.choose(text, places, rng) & (places >= 0)
        fate, drawn = self.fates(places, rng), self.drawn(text, places, rng)
        masks = np.full_like(ids, text.ids["[MASK]"])
        rows = {
            "input_ids": np.select([~chosen, fate == 0, fate == 1], [ids, masks, drawn], ids),
            "token_type_ids": np.where(places == PAD, 0, np.cumsum(seps, 1) - seps),
            "attention_mask": (places != PAD).astype(int),
            "labels": np.where(chosen, ids, IGNORED_LABEL),
        }
        rows |= {} if self.pairing.is_single else {"next_sentence_label": following}
        return self.batches(self.change(rows, text))


RIGHT = Pipeline()


def of(**parts: Any) -> Pipeline:
    return replace(RIGHT, **parts)


def pairing(**parts: Any) -> Pipeline:
    return replace(RIGHT, pairing=Pairing(**parts))


def changed(**functions: Callable[[Rows, Text], Ids]) -> Pipeline:
    """Return a pipeline in which some arrays are replaced, each by a function of all of them."""
    return replace(RIGHT, change=lambda rows, text: rows | {name: function(rows, text) for name, function in functions.items()})


def once(text: Text, places: Ids, rng: Random) -> Any:
    """Choose the tokens of the corpus once, instead of for each row."""
    return (np.random.default_rng(0).random(text.stream.size) < 0.15)[places]


def _at_the_right(rows: Rows, text: Text) -> Rows:
    """Put the padding on the left."""
    order = np.argsort(rows["attention_mask"], axis=1, kind="stable")
    return {name: array if array.ndim == 1 else np.take_along_axis(array, order, 1) for name, array in rows.items()}


def _declared(rows: Rows, text: Text) -> Rows:
    """Return the pipeline with the tutorial's conventions, or with those of a framework."""
    labels = np.where(rows["labels"] < 0, 0, rows["labels"])
    types = np.where(rows["attention_mask"], rows["token_type_ids"] + 1, 0)
    return rows | {"labels": labels, "token_type_ids": types, "next_sentence_label": 1 - rows["next_sentence_label"]}


def _cut_anywhere(a: Ids, b: Ids, room: int) -> tuple[Ids, Ids]:
    """Truncate from either end of the longer utterance, as Google's `truncate_seq_pair` does."""
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        shorter = longer[1:] if longer[0] % 2 else longer[:-1]
        a, b = (shorter, b) if longer is a else (a, shorter)
    return a, b


def _as_tensors(rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield tensors as a data loader does: each batch is as long as its longest row, and the last batch is dropped."""
    for batch in list(in_batches(rows))[:-1]:
        longest = int(batch.mask.sum(1).max())
        yield {name: torch.tensor(array[:, :longest] if array.ndim == 2 else array) for name, array in batch.arrays().items()}


def _by_length(rows: Rows) -> Iterator[Batch]:
    """Batch rows of equal length, so that there is neither padding nor a mask."""
    lengths = rows["attention_mask"].sum(1)
    for n in np.unique(lengths):
        some = {name: array[lengths == n] for name, array in rows.items() if name != "attention_mask"}
        yield Batch(**{name: array[:, :n] if array.ndim == 2 else array for name, array in some.items()})


CORRECT: dict[str, Pipeline] = {
    "plain": RIGHT,
    "an epoch as one batch": of(batches=lambda rows: iter([Batch(**rows)])),
    "dynamic": of(conventions=PretrainingConventions(dynamic=True)),
    "other conventions, declared": of(change=_declared, conventions=PretrainingConventions(0, 1, (1, 2))),
    "padding at the left": of(change=_at_the_right),
    "cut at either end": pairing(cut=_cut_anywhere),
    "random tokens from the whole vocabulary, declared": of(
        drawn=lambda text, places, rng: rng.choice(len(text.ids), places.shape),
        conventions=PretrainingConventions(special_replacements=True, dynamic=True),
    ),
    "chosen once for each utterance": of(choose=once),
    "tensors, the last batch dropped": of(batches=_as_tensors),
    "no padding and no mask": of(batches=_by_length),
    "single segments": pairing(is_single=True),
    "30 %, declared": of(
        choose=lambda text, places, rng: rng.random(places.shape) < 0.3, conventions=PretrainingConventions(chosen=0.3)
    ),
    "whole words, declared": of(choose=each_word(0.15), conventions=PretrainingConventions(whole_words=True)),
    "40 % of whole words, anew in each epoch, cut within words": replace(
        pairing(cut=_cut_anywhere),
        choose=each_word(0.4),
        conventions=PretrainingConventions(whole_words=True, chosen=0.4, dynamic=True),
    ),
}
