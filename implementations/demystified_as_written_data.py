"""The tutorial's data set, with its mistakes kept.

Its labels differ from BERT's: 1 for the next utterance, and 0 for tokens that were not chosen for prediction.
"""

import random
from collections.abc import Iterator
from itertools import pairwise

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from conformance import PretrainingConventions, PretrainingCorpus, PretrainingData

from .demystified import wordpiece
from .demystified.examples import CHOSEN, MASKED, RANDOM
from .demystified.network import PADDING

BATCH_SIZE = 32
IGNORED, IS_NEXT = 0, 1


class BERTDataset(Dataset[dict[str, Tensor]]):
    """A data set with one row for each pair of consecutive utterances."""

    def __init__(self, pairs: list[tuple[str, str]], tokenizer: Tokenizer, length: int, seed: str) -> None:
        self.pairs, self.tokenizer, self.length, self.random = pairs, tokenizer, length, random.Random(seed)
        self.vocabulary = tokenizer.get_vocab()

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        first, second = self.pairs[i]
        is_next = self.random.random() > 0.5
        if not is_next:
            second = self.random.choice(self.pairs)[1]  # mistake: it may be the next one
        (a, a_labels), (b, b_labels) = self.masked(first), self.masked(second)
        cls, sep = self.vocabulary["[CLS]"], self.vocabulary["[SEP]"]
        # Mistake: rows are cut after the special tokens were added, so the last [SEP], or all of B, may be lost.
        rows = {
            "input_ids": [cls, *a, sep, *b, sep][: self.length],
            "labels": [IGNORED, *a_labels, IGNORED, *b_labels, IGNORED][: self.length],
            "token_type_ids": [*[1] * (len(a) + 2), *[2] * (len(b) + 1)][: self.length],
        }
        padded = {name: torch.tensor(row + [PADDING] * (self.length - len(row))) for name, row in rows.items()}
        # The network treats ids of 0 as padding, wherever they are.
        mask = (padded["input_ids"] > PADDING).long()
        return {**padded, "attention_mask": mask, "next_sentence_label": torch.tensor(IS_NEXT if is_next else 1 - IS_NEXT)}

    def masked(self, utterance: str) -> tuple[list[int], list[int]]:
        """Return the token ids of an utterance after masking, and the labels."""
        shown: list[int] = []
        labels: list[int] = []
        for word in utterance.split():
            ids = self.tokenizer.encode(word, add_special_tokens=False).ids
            draw = self.random.random() / CHOSEN
            # Mistake: one random number for all pieces of a word, so they are chosen, and replaced, together.
            labels += ids if draw < 1.0 else [IGNORED] * len(ids)
            if draw < MASKED:
                shown += [self.vocabulary["[MASK]"]] * len(ids)
            elif draw < MASKED + RANDOM:
                # Mistake: special tokens are drawn as well, including [PAD].
                shown += [self.random.randrange(len(self.vocabulary)) for _ in ids]
            else:
                shown += ids
        return shown, labels


def epoch_of(corpus: PretrainingCorpus, epoch: int) -> Iterator[dict[str, Tensor]]:
    """Yield the shuffled batches of an epoch."""
    pairs = [pair for conversation in corpus.conversations for pair in pairwise(conversation)]
    tokenizer = wordpiece.of({piece: i for i, piece in enumerate(corpus.vocabulary)})
    dataset = BERTDataset(pairs, tokenizer, corpus.length, f"{corpus.seed}, {epoch}")
    yield from DataLoader(dataset, BATCH_SIZE, shuffle=True, generator=torch.Generator().manual_seed(epoch))


pretraining_data = PretrainingData(
    epoch_of, PretrainingConventions(ignored_label=IGNORED, next_label=IS_NEXT, token_types=(1, 2), dynamic=True)
)
