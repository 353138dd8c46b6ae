"""Hugging Face's masked-LM data: its tokenizer, and its collator in a data loader, combined as in `Trainer`.

`Trainer.get_train_dataloader` makes a `DataLoader` with a random sampler and this collator; each row is an utterance.
"""

import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from conformance import PretrainingConventions, PretrainingCorpus, PretrainingData

from .transformers_versions import tokenizer_of

BATCH_SIZE = 32


def tokenized(corpus: PretrainingCorpus) -> tuple[Any, list[dict[str, list[int]]]]:
    """Return the tokenizer for the corpus's vocabulary, and one row for each utterance."""
    tokenizer = tokenizer_of(corpus.vocabulary)
    texts = [text for conversation in corpus.conversations for text in conversation]
    found = tokenizer(texts, truncation=True, max_length=corpus.length, return_special_tokens_mask=True)
    return tokenizer, [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


def epoch_of(corpus: PretrainingCorpus, epoch: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the shuffled batches of an epoch."""
    from transformers import DataCollatorForLanguageModeling

    tokenizer, rows = tokenized(corpus)
    seed = zlib.crc32(repr((corpus.seed, epoch)).encode())
    shuffle = torch.Generator().manual_seed(seed)
    collator = DataCollatorForLanguageModeling(tokenizer)
    collator.generator = torch.Generator().manual_seed(seed)  # the collator's argument `seed` is rejected in a worker process
    yield from DataLoader(rows, BATCH_SIZE, shuffle=True, generator=shuffle, collate_fn=collator)  # type: ignore[arg-type]


pretraining_data = PretrainingData(epoch_of, PretrainingConventions(special_replacements=True, dynamic=True))
