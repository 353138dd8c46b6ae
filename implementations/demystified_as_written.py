"""*Demystifying BERT* as written in the tutorial, with its mistakes kept and marked by comments.

Everything else is imported from `demystified`. The file `demystified_as_written.toml` beside this one declares that the suite
finds each of the mistakes and nothing more.
"""

import math
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from conformance import (
    Architecture,
    PretrainingConventions,
    PretrainingCorpus,
    PretrainingData,
    Tap,
    TorchBatch,
    TorchImplementation,
    Training,
    Unsupported,
)

from .demystified import candidate as right
from .demystified import wordpiece
from .demystified.examples import CHOSEN, MASKED, RANDOM
from .demystified.network import BERTLM, PADDING, FeedForward, MultiHeadedAttention

LENGTH = 64  # the tutorial's only length; a candidate uses its checkpoint's maximum length


class PositionalEmbedding(nn.Module):
    """The position table: () -> (1, P, H), whatever the length of the input."""

    def __init__(self, hidden_size: int, length: int = LENGTH) -> None:
        super().__init__()
        table = torch.zeros(length, hidden_size)
        table.require_grad = False  # type: ignore[attr-defined]  # mistake: this attribute does not exist, so nothing happens
        for s in range(length):
            for i in range(0, hidden_size, 2):
                # Mistake: i steps by two, so it already equals 2i; and a cosine should share the exponent of its sine.
                table[s, i] = math.sin(s / 10000.0 ** (2 * i / hidden_size))
                table[s, i + 1] = math.cos(s / 10000.0 ** (2 * (i + 1) / hidden_size))
        self.table = table[None]  # mistake: not a buffer, so it is neither saved nor moved with the module

    def forward(self, ids: Tensor) -> Tensor:
        return self.table  # mistake: not cut to the length of the ids


class BERTEmbedding(nn.Module):
    """Dropout of token + position + segment: (B, P), (B, P) -> (B, P, H)."""

    def __init__(self, vocab_size: int, hidden_size: int, length: int = LENGTH, dropout: float = 0.1) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, hidden_size, padding_idx=PADDING)
        self.segment = nn.Embedding(3, hidden_size, padding_idx=PADDING)
        self.position = PositionalEmbedding(hidden_size, length)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        return self.dropout(self.token(ids) + self.position(ids) + self.segment(segments))


class EncoderLayer(nn.Module):
    """Attention, then the feed-forward network, each with a residual and a LayerNorm: (B, S, H) -> (B, S, H)."""

    def __init__(self, hidden_size: int, heads: int, intermediate_size: int, dropout: float = 0.1) -> None:
        super().__init__()
        # Mistake, here and at the embedding: the rate is not passed on, so these dropouts keep 0.1.
        self.self_multihead = MultiHeadedAttention(heads, hidden_size)
        self.feed_forward = FeedForward(hidden_size, intermediate_size)
        self.layernorm = nn.LayerNorm(hidden_size)  # mistakes: shared by both residuals, and torch's default epsilon of 1e-5
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        attended = self.layernorm(hidden + self.dropout(self.self_multihead(hidden, mask)))  # (B, S, H)
        return self.layernorm(attended + self.dropout(self.feed_forward(attended)))


class BERT(nn.Module):
    """Embedding and encoder layers: (B, P) ids, (B, P) segments -> (B, P, H); without a mask, ids of 0 are padding."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int = 768,
        n_layers: int = 12,
        heads: int = 12,
        length: int = LENGTH,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding = BERTEmbedding(vocab_size, hidden_size, length)
        layers = [EncoderLayer(hidden_size, heads, 4 * hidden_size, dropout) for _ in range(n_layers)]
        self.encoder_blocks = nn.ModuleList(layers)

    def forward(self, ids: Tensor, segments: Tensor, mask: Tensor | None = None) -> Tensor:
        attended = ids > PADDING if mask is None else mask != 0  # (B, S)
        hidden = self.embedding(ids, segments)  # (B, S, H)
        for layer in self.encoder_blocks:
            hidden = layer(hidden, attended)
        return hidden


class ScheduledOptimizer:
    """Adam with the learning rate of Vaswani et al. 2017, section 5.3: H^(−1/2) min(step^(−1/2), step · warm-up^(−3/2))."""

    def __init__(self, optimizer: torch.optim.Optimizer, hidden_size: int, warmup_steps: int) -> None:
        self.optimizer, self.warmup_steps = optimizer, warmup_steps
        self.steps = 0
        self.largest = hidden_size**-0.5  # mistake: the learning rate given to the trainer is not used

    def step(self) -> None:
        """Set the learning rate of the next step, counted from 1, and perform the optimizer's step."""
        self.steps += 1
        rate = self.largest * min(self.steps**-0.5, self.steps * self.warmup_steps**-1.5)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()


def train(model: BERTLM, training: Training) -> Callable[[TorchBatch], None]:
    """Return the trainer's step, with the settings of the tutorial's trainer; mistake: gradients are not clipped."""
    if training.lr_scheduler_type != "inverse_sqrt" or not training.bias_correction:
        raise Unsupported("the tutorial's rate falls as 1/√step, and its Adam corrects its moments")
    betas = (training.adam_beta1, training.adam_beta2)
    # Mistakes: decay is added to the gradient and applies to biases and norms too; ε is torch's default, not the one asked for.
    adam = torch.optim.Adam(model.parameters(), lr=training.learning_rate, betas=betas, weight_decay=training.weight_decay)
    hidden_size = model.next_sentence.linear.in_features
    schedule = ScheduledOptimizer(adam, hidden_size, training.warmup_steps)

    def step(batch: TorchBatch) -> None:
        model.train()
        loss = call(model, batch)["cls.loss"]
        adam.zero_grad()
        loss.backward()
        schedule.step()

    return step


# The data.

BATCH_SIZE = 32
IGNORED, IS_NEXT = 0, 1


class BERTDataset(Dataset[dict[str, Tensor]]):
    """The tutorial's data set, with one row for each pair of consecutive utterances.

    Its labels differ from BERT's: 1 for the next utterance, and 0 for tokens that were not chosen for prediction.
    """

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


# The candidate.


def build(a: Architecture) -> BERTLM:
    """Return the network for the checkpoint's maximum length, since it supports a single length."""
    bert = BERT(a.vocab_size, a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.max_position_embeddings)
    return BERTLM(bert, a.hidden_size, a.vocab_size)


def call(model: nn.Module, batch: TorchBatch) -> dict[str, Tensor]:
    """Return both heads' logits and the losses; mistake: label 0 is ignored as padding, although half of all pairs have it."""
    given = batch.filled()
    return right.losses(model(given.input_ids, given.token_type_ids, given.attention_mask), batch, ignored_pairs=0)


def supported(a: Architecture, device: str, dtype: str) -> str | None:
    """Return why the architecture is not supported: as in `demystified`, or other sizes than the tutorial's, or not on the CPU."""
    if torch.device(device).type != "cpu":
        return "the tutorial's table of positions is no buffer: it stays on the CPU when the module moves"
    if a.type_vocab_size != 3 or a.intermediate_size != 4 * a.hidden_size:
        return "the tutorial's network has three segment ids, and an intermediate size of four times the hidden size"
    if a.hidden_size % 2:
        return "the tutorial's table of positions is filled two columns at a time, so its width is even"
    return right.supported(a, device, dtype)


_BLOCK, _LAYER = "bert.encoder_blocks.{layer}", "encoder.layer.{layer}"

demystified_as_written = TorchImplementation(
    build=build,
    parameters={name: of for name, of in right.PARAMETERS.items() if "_norm." not in name}
    | {f"{_BLOCK}.layernorm.{part}": f"bert.{_LAYER}.attention.output.LayerNorm.{part}" for part in ("weight", "bias")},
    activations={where: name for where, name in right.ACTIVATIONS.items() if where not in right.NORMS}
    | {Tap(f"{_BLOCK}.layernorm", call=i): name for i, name in enumerate(right.NORMS.values())},
    call=call,
    train=train,
    untrained=build,
    pretraining_data=pretraining_data,
    unused=("bert.encoder.layer.*[0-9].output.LayerNorm.*",),
    supported=supported,
    name="demystified-as-written",
    known_failures=Path(__file__).with_suffix(".toml"),
)
