"""Pipelines of pre-training data that each break one property, modelled on mistakes seen in practice."""

from collections.abc import Callable

import numpy as np

from conformance import PretrainingConventions
from conformance.model.batch import IGNORED_LABEL, Ids
from conformance.tests.pipelines import (
    Pipeline,
    Random,
    Rows,
    Text,
    changed,
    next_or_random,
    of,
    once,
    pairing,
    usual_fates,
)


def _shuffled(rows: Rows, text: Text) -> Ids:
    """Shuffle all tokens of a row except the special ones."""
    found, rng = rows["input_ids"].copy(), np.random.default_rng(0)
    for row in found:
        row[text.is_ordinary[row]] = rng.permutation(row[text.is_ordinary[row]])
    return found


def _at_sep(rows: Rows, text: Text) -> Ids:
    return np.where(rows["input_ids"] == text.ids["[SEP]"], rows["input_ids"], rows["labels"])


def _random_without_label(rows: Rows, text: Text) -> Ids:
    is_random = np.isin(rows["input_ids"], text.ordinary) & (rows["input_ids"] != rows["labels"])
    return np.where(is_random, IGNORED_LABEL, rows["labels"])


def _two_types(rows: Rows, text: Text) -> Ids:
    """Give the [SEP] after segment A the token type of segment B."""
    seps = rows["input_ids"] == text.ids["[SEP]"]
    return np.where(seps, 1, rows["token_type_ids"])


def _next_id(text: Text, places: Ids, rng: Random) -> Ids:
    return text.ordinary[(np.searchsorted(text.ordinary, text.stream[places]) + 1) % len(text.ordinary)]


def _in_films(text: Text) -> list[int]:
    """Treat all conversations as one long list of lines."""
    return list(range(len(text.utterances) - 1))


def _any_other(text: Text, i: int, rng: Random) -> tuple[int, int]:
    return (i + 1, 0) if rng.random() < 0.5 else (int(rng.integers(len(text.utterances))), 1)


def _chunks(rows: Rows, text: Text) -> Rows:
    """Cut the corpus into pieces of 22 tokens, regardless of utterance boundaries."""
    tokens = text.stream[: len(text.stream) // 22 * 22].reshape(-1, 22)
    ends = np.full((len(tokens), 1), text.ids["[SEP]"])
    ids = np.concatenate([np.full_like(ends, text.ids["[CLS]"]), tokens, ends], 1)
    return {"input_ids": ids, "labels": np.full_like(ids, IGNORED_LABEL)}


def _same_for(*shape: int) -> Pipeline:
    """Choose tokens once per row or per batch, and draw what replaces them separately for each."""
    return of(choose=lambda text, places, rng: np.resize(rng.random(shape) < 0.15, places.shape))


def _from(tokens: Callable[[Text], Ids]) -> Pipeline:
    """Draw random tokens from a part of the vocabulary."""
    return of(drawn=lambda text, places, rng: rng.choice(tokens(text), places.shape))


# By name: the broken pipeline, the check that must find it, and words of that check's message.
BROKEN: dict[str, tuple[Pipeline, str, str]] = {
    "rows cut after [SEP] was added": (pairing(cut=lambda a, b, room: (a, b)), "data-layout", "the last token is not [SEP]"),
    "all of B cut": (pairing(cut=lambda a, b, room: (a, b[:0] if len(a) + len(b) > room else b)), "data-layout",
                     "there are more or fewer segments with tokens than 2"),
    "padding that is attended to": (changed(attention_mask=lambda rows, text: np.ones_like(rows["labels"])), "data-layout",
                                    "the mask shows [PAD]"),
    "tokens that are hidden": (changed(attention_mask=lambda rows, text: rows["attention_mask"] * (rows["labels"] < 0)),
                               "data-layout", "the mask hides tokens"),
    "the first [SEP] counted with B": (changed(token_type_ids=_two_types), "data-layout",
                                       "segment A has token types other than 0"),
    "tokens in another order": (changed(input_ids=_shuffled), "data-layout", "a segment is found nowhere in the corpus"),
    "chunks of the corpus": (of(change=_chunks), "data-layout", "a segment runs from one conversation into the next"),
    "utterances left out": (pairing(firsts=lambda text: text.firsts()[::2]), "data-layout", "utterances that another one follows"),
    "labels of the position before": (changed(labels=lambda rows, text: np.roll(rows["labels"], 1, 1)), "data-labels",
                                      "a label is not the token that the corpus has there"),
    "labels copied after replacing": (changed(labels=lambda rows, text: np.where(rows["labels"] < 0, -100, rows["input_ids"])),
                                      "data-labels", "a label is not the token that the corpus has there"),
    "labels at [SEP]": (changed(labels=_at_sep), "data-labels", "a special token or padding has a label"),
    "random tokens without a label": (changed(labels=_random_without_label), "data-labels", "a token is changed and has no label"),
    "a share of 12 %": (of(choose=lambda text, places, rng: rng.random(places.shape) < 0.12), "data-choice",
                        "tokens of the corpus are chosen, where"),
    "15 %, though 30 % are declared": (of(conventions=PretrainingConventions(chosen=0.3)), "data-choice",
                                       "at a probability of 0.3"),
    "tokens, though whole words are declared": (of(conventions=PretrainingConventions(whole_words=True)), "data-choice",
                                                "a part of a word is chosen, where whole words are declared"),
    "a seed for each row": (_same_for(24), "data-choice", "same position in neighbouring rows"),
    "a seed for each batch": (_same_for(32, 24), "data-choice", "same position in neighbouring batches"),
    "static, though declared dynamic": (of(choose=once, conventions=PretrainingConventions(dynamic=True)),
                                        "data-choice", "are chosen again in the next one"),
    "[MASK] alone": (of(fates=lambda places, rng: 0 * places), "data-replacement", "chosen tokens are shown as [MASK]"),
    "labels that leak": (of(fates=lambda places, rng: rng.choice(3, places.shape, p=[0.7, 0.1, 0.2])), "data-replacement",
                         "are shown as they are, so that the input has the label"),
    "one fate for a row": (of(fates=lambda places, rng: usual_fates(places[:, :1], rng) + 0 * places), "data-replacement",
                           "pairs of chosen tokens of a row are both [MASK] or both not"),
    "random tokens from the whole vocabulary": (_from(lambda text: np.arange(len(text.ids))), "data-replacement",
                                                "random tokens are special ones, none may be"),
    "special tokens alone, declared": (
        of(drawn=lambda text, places, rng: rng.choice(np.flatnonzero(~text.is_ordinary), places.shape),
           conventions=PretrainingConventions(special_replacements=True)),
        "data-replacement", "random tokens are special ones, where"),
    "random words, no pieces that continue one": (_from(lambda text: np.flatnonzero(text.is_ordinary & ~text.continues)),
                                                  "data-replacement", "are beginnings of words"),
    "the next token of the vocabulary": (of(drawn=_next_id), "data-replacement", "stand 1 after the original"),
    "two thirds next": (pairing(second=lambda text, i, rng: (i + 1, 0) if rng.random() < 0.6 else next_or_random(text, i, rng)),
                        "data-pairs", "pairs are labelled as next"),
    "labels the other way round": (changed(next_sentence_label=lambda rows, text: 1 - rows["next_sentence_label"]), "data-pairs",
                                   "a pair labelled as next is not two consecutive utterances"),
    "pairs across films": (pairing(firsts=_in_films), "data-pairs", "a pair labelled as next is across the border"),
    "a random utterance that may be the next": (pairing(second=_any_other), "data-pairs",
                                                "a pair labelled as not next is the next"),
}  # fmt: skip
