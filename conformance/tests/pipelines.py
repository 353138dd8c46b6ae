"""A correct pipeline of pre-training data, written plainly; others that break one property each, and unusual correct ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from conformance import Batch, PretrainingConventions, PretrainingCorpus, PretrainingData
from conformance.model.batch import IGNORED_LABEL, Ids

PAD, SEP, MASK = "[PAD]", "[SEP]", "[MASK]"
Random = np.random.Generator


@dataclass(frozen=True)
class Text:
    """A corpus by ids: its utterances, the conversation of each, and which of the vocabulary continue a word or are ordinary."""

    utterances: list[Ids]
    conversations: list[int]
    ids: dict[str, int]
    continues: Any
    is_ordinary: Any

    @property
    def ordinary(self) -> Ids:
        return np.flatnonzero(self.is_ordinary)

    def firsts(self) -> list[int]:
        """Utterances that another one follows."""
        return [i for i in range(len(self.utterances) - 1) if self.conversations[i] == self.conversations[i + 1]]


@lru_cache(maxsize=4)
def text_of(corpus: PretrainingCorpus) -> Text:
    """Every piece has two letters."""
    ids = {piece: i for i, piece in enumerate(corpus.vocabulary)}

    def read(text: str) -> Ids:
        return np.array([ids[("##" if i else "") + word[i : i + 2]] for word in text.split() for i in range(0, len(word), 2)])

    owners = [c for c, conversation in enumerate(corpus.conversations) for _ in conversation]
    utterances = [read(text) for conversation in corpus.conversations for text in conversation]
    continues, is_special = (np.char.startswith(corpus.vocabulary, begin) for begin in ("##", "["))
    return Text(utterances, owners, ids, continues, ~is_special)


def next_or_random(text: Text, i: int, rng: Random) -> tuple[int, int]:
    """The second utterance, and 0 if it is the next, 1 if it is another one."""
    if rng.random() < 0.5:
        return i + 1, 0
    while (other := int(rng.integers(len(text.utterances)))) == i + 1:
        pass
    return other, 1


def cut_ends(a: Ids, b: Ids, room: int) -> tuple[Ids, Ids]:
    while len(a) + len(b) > room:
        a, b = (a[:-1], b) if len(a) > len(b) else (a, b[:-1])
    return a, b


def each_token(text: Text, ids: Ids, rng: Random) -> Any:
    return rng.random(len(ids)) < 0.15


def usual_fates(ids: Ids, rng: Random) -> Ids:
    """0 for [MASK], 1 for a random token, 2 for none of them."""
    return np.digitize(rng.random(len(ids)), [0.8, 0.9])


def any_ordinary(text: Text, ids: Ids, rng: Random) -> Ids:
    return text.ordinary[rng.integers(len(text.ordinary), size=len(ids))]


def in_batches(rows: dict[str, Ids], size: int = 32) -> Iterator[Any]:
    return (Batch(**{name: array[at : at + size] for name, array in rows.items()}) for at in range(0, len(rows["labels"]), size))


def unchanged(rows: dict[str, Ids], text: Text) -> dict[str, Ids]:
    return rows


def number(corpus: PretrainingCorpus, epoch: int, row: int) -> tuple[int, ...]:
    """A seed of its own for each row."""
    return corpus.seed, epoch, row


@dataclass(frozen=True)
class Pipeline:
    """Each of its parts may be another one.

    Attributes:
        firsts: which utterances begin a row; single: whether a row has one segment.
        second, cut, choose, fates, drawn: as the functions of the defaults.
        seed: of a row, from the corpus, the epoch and the row's number.
        change: the rows, once they are padded, as arrays by name.
        batches: what is yielded of the rows.
        conventions: what the pipeline says of itself.
    """

    firsts: Callable[[Text], list[int]] = Text.firsts
    single: bool = False
    second: Callable[[Text, int, Random], tuple[int, int]] = next_or_random
    cut: Callable[[Ids, Ids, int], tuple[Ids, Ids]] = cut_ends
    choose: Callable[[Text, Ids, Random], Any] = each_token
    fates: Callable[[Ids, Random], Ids] = usual_fates
    drawn: Callable[[Text, Ids, Random], Ids] = any_ordinary
    seed: Callable[[PretrainingCorpus, int, int], Any] = number
    change: Callable[[dict[str, Ids], Text], dict[str, Ids]] = unchanged
    batches: Callable[[dict[str, Ids]], Iterator[Any]] = in_batches
    conventions: PretrainingConventions = PretrainingConventions()

    @property
    def pretraining_data(self) -> PretrainingData:
        return PretrainingData(self.epoch, self.conventions)

    def prepare(self, *case: Any) -> Any:
        raise NotImplementedError("it has data and no network")

    def epoch(self, corpus: PretrainingCorpus, epoch: int) -> Iterator[Any]:
        drawing = replace(self, change=unchanged, batches=in_batches, conventions=PretrainingConventions())
        return self.batches(self.change(drawn_rows(drawing, corpus, epoch), text_of(corpus)))

    def row(self, text: Text, corpus: PretrainingCorpus, epoch: int, n: int, i: int) -> tuple[Any, ...]:
        rng = np.random.default_rng(self.seed(corpus, epoch, n))
        other, label = self.second(text, i, rng)
        a, b = text.utterances[i], text.utterances[other][: 0 if self.single else None]
        a, b = self.cut(a, b, corpus.length - (2 if self.single else 3))
        cls, sep = text.ids["[CLS]"], text.ids[SEP]
        ids = np.array([cls, *a, sep] if self.single else [cls, *a, sep, *b, sep])
        types = np.repeat([0, 1], [len(a) + 2, len(ids) - len(a) - 2])
        chosen = self.choose(text, ids, rng) & text.is_ordinary[ids]
        fate, drawn = self.fates(ids, rng), self.drawn(text, ids, rng)
        shown = np.select([~chosen, fate == 0, fate == 1], [ids, np.full_like(ids, text.ids[MASK]), drawn], ids)
        return shown, types, np.ones_like(ids), np.where(chosen, ids, IGNORED_LABEL), label


@lru_cache(maxsize=64)
def drawn_rows(pipeline: Pipeline, corpus: PretrainingCorpus, epoch: int) -> dict[str, Ids]:
    """What pipelines that differ in what they do with it draw."""
    text = text_of(corpus)
    rows = [pipeline.row(text, corpus, epoch, n, i) for n, i in enumerate(pipeline.firsts(text))]
    names = ("input_ids", "token_type_ids", "attention_mask", "labels")
    empty = (text.ids[PAD], 0, 0, IGNORED_LABEL)
    padded = {name: padding([row[i] for row in rows], empty[i], corpus.length) for i, name in enumerate(names)}
    return padded if pipeline.single else padded | {"next_sentence_label": np.array([row[4] for row in rows])}


def padding(rows: list[Ids], empty: int, length: int) -> Ids:
    padded = np.full((len(rows), length), empty)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row[:length]
    return padded


RIGHT = Pipeline()


def changed(**functions: Callable[[dict[str, Ids], Text], Ids]) -> Pipeline:
    """One in which some arrays are others, each a function of all of them."""
    return replace(RIGHT, change=lambda rows, text: rows | {name: function(rows, text) for name, function in functions.items()})


def _at_sep(rows: dict[str, Ids], text: Text) -> Ids:
    return np.where(rows["input_ids"] == text.ids[SEP], rows["input_ids"], rows["labels"])


def _random_without_label(rows: dict[str, Ids], text: Text) -> Ids:
    is_random = np.isin(rows["input_ids"], text.ordinary) & (rows["input_ids"] != rows["labels"])
    return np.where(is_random, IGNORED_LABEL, rows["labels"])


def _two_types(rows: dict[str, Ids], text: Text) -> Ids:
    """The [SEP] of A has the type of B."""
    seps = rows["input_ids"] == text.ids[SEP]
    return np.where(seps, 1, rows["token_type_ids"])


def _words(text: Text, ids: Ids, rng: Random) -> Any:
    return each_token(text, ids, rng)[np.cumsum(~text.continues[ids]) - 1]


def _spans(text: Text, ids: Ids, rng: Random) -> Any:
    return each_token(text, ids, rng)[np.arange(len(ids)) // 3 * 3]


def _next_id(text: Text, ids: Ids, rng: Random) -> Ids:
    return text.ordinary[(np.searchsorted(text.ordinary, ids) + 1) % len(text.ordinary)]


def _in_films(text: Text) -> list[int]:
    """Conversations are one long list of lines."""
    return list(range(len(text.utterances) - 1))


def _any_other(text: Text, i: int, rng: Random) -> tuple[int, int]:
    return (i + 1, 0) if rng.random() < 0.5 else (int(rng.integers(len(text.utterances))), 1)


def _chunks(rows: dict[str, Ids], text: Text) -> dict[str, Ids]:
    """The corpus in pieces of 22 tokens, wherever they are cut."""
    stream = np.concatenate(text.utterances)
    tokens = stream[: len(stream) // 22 * 22].reshape(-1, 22)
    ends = np.full((len(tokens), 1), text.ids[SEP])
    ids = np.concatenate([np.full_like(ends, text.ids["[CLS]"]), tokens, ends], 1)
    return {"input_ids": ids, "labels": np.full_like(ids, IGNORED_LABEL)}


def _of(**parts: Any) -> Pipeline:
    return replace(RIGHT, **parts)


# The check that is meant for each, and words of what it says.
BROKEN: dict[str, tuple[Pipeline, str, str]] = {
    "rows cut after [SEP] was added": (_of(cut=lambda a, b, room: (a, b)), "data-layout", "the last token is not [SEP]"),
    "all of B cut": (_of(cut=lambda a, b, room: (a, b[:0] if len(a) + len(b) > room else b)), "data-layout",
                     "there are more or fewer segments with tokens than 2"),
    "padding that is attended to": (changed(attention_mask=lambda rows, text: np.ones_like(rows["labels"])), "data-layout",
                                    "the mask shows [PAD]"),
    "tokens that are hidden": (changed(attention_mask=lambda rows, text: rows["attention_mask"] * (rows["labels"] < 0)),
                               "data-layout", "the mask hides tokens"),
    "a mask of zeros": (changed(attention_mask=lambda rows, text: 0 * rows["labels"]), "data-layout", "the mask hides tokens"),
    "ids that are no text": (changed(input_ids=lambda rows, text: 0 * rows["labels"] + 5), "data-layout", "is not [CLS]"),
    "one token type": (changed(token_type_ids=lambda rows, text: 0 * rows["labels"]), "data-layout",
                       "segment B has token types other than 1"),
    "the first [SEP] counted with B": (changed(token_type_ids=_two_types), "data-layout",
                                       "segment A has token types other than 0"),
    "no [CLS]": (_of(change=lambda rows, text: {k: v if v.ndim == 1 else v[:, 1:] for k, v in rows.items()}), "data-layout",
                 "the first token is not [CLS]"),
    "text in reverse": (changed(input_ids=lambda rows, text: _reversed(rows["input_ids"], text)), "data-layout",
                        "a segment is found nowhere in the corpus"),
    "chunks of the corpus": (_of(change=_chunks), "data-layout", "a segment runs from one conversation into the next"),
    "utterances left out": (_of(firsts=lambda text: text.firsts()[::2]), "data-layout", "utterances that another one follows"),
    "labels of the position before": (changed(labels=lambda rows, text: np.roll(rows["labels"], 1, 1)), "data-labels",
                                      "a label is not the token that the corpus has there"),
    "labels copied after replacing": (changed(labels=lambda rows, text: np.where(rows["labels"] < 0, -100, rows["input_ids"])),
                                      "data-labels", "a label is not the token that the corpus has there"),
    "labels at [SEP]": (changed(labels=_at_sep), "data-labels", "a special token or padding has a label"),
    "labels at padding": (changed(labels=lambda rows, text: np.where(rows["attention_mask"], rows["labels"], 0)), "data-labels",
                          "a special token or padding has a label"),
    "random tokens without a label": (changed(labels=_random_without_label), "data-labels", "a token is changed and has no label"),
    "a share of 12 %": (_of(choose=lambda text, ids, rng: rng.random(len(ids)) < 0.12), "data-choice", "tokens of the corpus are"),
    "words as a whole": (_of(choose=_words), "data-choice", "have their first two pieces chosen alike"),
    "spans of tokens": (_of(choose=_spans), "data-choice", "pairs of neighbouring tokens of two words are chosen alike"),
    "a seed for each row": (_of(seed=lambda corpus, epoch, n: 7), "data-choice", "same position in neighbouring rows"),
    "a seed for each batch": (_of(seed=lambda corpus, epoch, n: n % 32), "data-choice", "same position in neighbouring batches"),
    "static, though declared dynamic": (_of(seed=lambda corpus, epoch, n: n, conventions=PretrainingConventions(dynamic=True)),
                                        "data-choice", "are chosen again in the next one"),
    "[MASK] alone": (_of(fates=lambda ids, rng: 0 * ids), "data-replacement", "chosen tokens are shown as [MASK]"),
    "labels that leak": (_of(fates=lambda ids, rng: rng.choice(3, len(ids), p=[0.7, 0.1, 0.2])), "data-replacement",
                         "are shown as they are, so that the input has the label"),
    "one fate for a row": (_of(fates=lambda ids, rng: np.repeat(usual_fates(ids[:1], rng), len(ids))), "data-replacement",
                           "pairs of chosen tokens of a row are both [MASK] or both not"),
    "random tokens from the whole vocabulary": (_of(drawn=lambda text, ids, rng: rng.choice(len(text.ids), len(ids))),
                                                "data-replacement", "random tokens are special ones, none may be"),
    "random tokens never special, though declared": (_of(conventions=PretrainingConventions(special_replacements=True),
                                                         drawn=lambda text, ids, rng: rng.choice(text.ordinary[:9], len(ids))),
                                                     "data-replacement", "are of the first half of the vocabulary"),
    "random tokens from half of the vocabulary": (_of(drawn=lambda text, ids, rng: rng.choice(text.ordinary[:74], len(ids))),
                                                  "data-replacement", "are of the first half of the vocabulary"),
    "random words, no pieces that continue one": (
        _of(drawn=lambda text, ids, rng: rng.choice(text.ordinary[~text.continues[text.ordinary]], len(ids))),
        "data-replacement", "are that begin a word"),
    "the next token of the vocabulary": (_of(drawn=_next_id), "data-replacement", "stand 1 after the original"),
    "one random token for all": (_of(drawn=lambda text, ids, rng: np.full(len(ids), text.ordinary[5])), "data-replacement",
                                 "random tokens are "),
    "two thirds next": (_of(second=lambda text, i, rng: (i + 1, 0) if rng.random() < 0.6 else next_or_random(text, i, rng)),
                        "data-pairs", "pairs are labelled as next"),
    "labels the other way round": (changed(next_sentence_label=lambda rows, text: 1 - rows["next_sentence_label"]), "data-pairs",
                                   "a pair labelled as next is not two consecutive utterances"),
    "pairs across films": (_of(firsts=_in_films), "data-pairs", "a pair labelled as next is across the border"),
    "a random utterance that may be the next": (_of(second=_any_other), "data-pairs", "a pair labelled as not next is the next"),
    "labels that are neither": (changed(next_sentence_label=lambda rows, text: 2 * rows["next_sentence_label"]), "data-pairs",
                                "next_sentence_label is neither 0 nor 1"),
}  # fmt: skip


def _reversed(ids: Ids, text: Text) -> Ids:
    """Each utterance from its end."""
    found = ids.copy()
    for row in found:
        bounds = [0, *np.flatnonzero(row == text.ids[SEP])]
        for begin, end in zip(bounds, bounds[1:], strict=False):
            row[begin + 1 : end] = row[begin + 1 : end][::-1].copy()
    return found


def _at_the_right(rows: dict[str, Ids], text: Text) -> dict[str, Ids]:
    """Padding at the left."""
    order = np.argsort(rows["attention_mask"], axis=1, kind="stable")
    return {name: array if array.ndim == 1 else np.take_along_axis(array, order, 1) for name, array in rows.items()}


def _declared(rows: dict[str, Ids], text: Text) -> dict[str, Ids]:
    """The tutorial's conventions, or a framework's."""
    labels = np.where(rows["labels"] < 0, 0, rows["labels"])
    types = np.where(rows["attention_mask"], rows["token_type_ids"] + 1, 0)
    return rows | {"labels": labels, "token_type_ids": types, "next_sentence_label": 1 - rows["next_sentence_label"]}


def _cut_anywhere(a: Ids, b: Ids, room: int) -> tuple[Ids, Ids]:
    """As Google's `truncate_seq_pair`: from either end of the longer one."""
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        shorter = longer[1:] if longer[0] % 2 else longer[:-1]
        a, b = (shorter, b) if longer is a else (a, shorter)
    return a, b


def _once(text: Text, ids: Ids, rng: Random) -> Any:
    """What is chosen of an utterance is chosen once and for all: by what the utterance is."""
    parts = np.split(ids, np.flatnonzero(ids == text.ids[SEP]) + 1)
    parts = [part for part in parts if part.size]
    own = [np.random.default_rng(part[part != text.ids["[CLS]"]].tolist()) for part in parts]
    return np.concatenate([g.random(part.size + 1)[-part.size :] < 0.15 for g, part in zip(own, parts, strict=True)])


def _as_tensors(rows: dict[str, Ids]) -> Iterator[dict[str, Any]]:
    """As a data loader has them, each batch as long as its longest row, the last one dropped."""
    for batch in list(in_batches(rows))[:-1]:
        longest = int(batch.mask.sum(1).max())
        yield {name: torch.tensor(array[:, :longest] if array.ndim == 2 else array) for name, array in batch.arrays().items()}


def _by_length(rows: dict[str, Ids]) -> Iterator[Batch]:
    """Rows of one length together, so that there is no padding, and no mask."""
    lengths = rows["attention_mask"].sum(1)
    for n in np.unique(lengths):
        some = {name: array[lengths == n] for name, array in rows.items() if name != "attention_mask"}
        yield Batch(**{name: array[:, :n] if array.ndim == 2 else array for name, array in some.items()})


CORRECT: dict[str, Pipeline] = {
    "plain": RIGHT,
    "an epoch as one batch": _of(batches=lambda rows: iter([Batch(**rows)])),
    "dynamic": _of(conventions=PretrainingConventions(dynamic=True)),
    "other conventions, declared": _of(change=_declared, conventions=PretrainingConventions(0, 1, (1, 2))),
    "padding at the left": _of(change=_at_the_right),
    "cut at either end": _of(cut=_cut_anywhere),
    "random tokens from the whole vocabulary, declared": _of(
        drawn=lambda text, ids, rng: rng.choice(len(text.ids), len(ids)),
        conventions=PretrainingConventions(special_replacements=True, dynamic=True),
    ),
    "chosen once for each utterance": _of(choose=_once),
    "tensors, the last batch dropped": _of(batches=_as_tensors),
    "no padding and no mask": _of(batches=_by_length),
    "single segments": _of(single=True),
}
