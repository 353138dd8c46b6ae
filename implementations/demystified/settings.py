"""What a run depends on."""

from dataclasses import dataclass

from conformance import Architecture, Training, UsageError
from implementations.demystified.wordpiece import SPECIAL


@dataclass(frozen=True)
class Settings:
    """What a run depends on, but for the number of steps.

    Attributes:
        folder: that of the dialogues.
        vocabulary_size, length, batch_size: pieces at most; tokens of a row at most; rows of a batch.
        layers, hidden_size, heads: of the network; the intermediate size is four times the hidden size.
        dropout: the rate of every dropout; a small corpus, seen many times in a few steps, is learnt sooner without.
        learning_rate, warmup_steps: the largest rate, and when it is reached.
        seed: of all that is drawn.

    Raises:
        UsageError: a number is out of its range.
        UnsupportedArchitectureError: there is no network of these sizes.
    """

    folder: str
    vocabulary_size: int = 30_000
    length: int = 32
    batch_size: int = 256
    layers: int = 2
    hidden_size: int = 128
    heads: int = 4
    dropout: float = 0.0
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.length - 4, self.batch_size, self.warmup_steps) < 1 or not 0 <= self.seed < 2**31:
            raise UsageError("expected batch-size and warmup-steps of 1 or more, length of 5 or more, seed from 0 to 2³¹ − 1")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"expected a dropout from 0 to less than 1, not {self.dropout}")
        self.architecture(len(SPECIAL))

    def architecture(self, vocabulary_size: int) -> Architecture:
        """The network's, for a vocabulary of that size."""
        return Architecture(
            vocab_size=vocabulary_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.hidden_size,
            max_position_embeddings=self.length,
            type_vocab_size=3,
            position_embedding_type="sinusoidal",
            embedding_norm=False,
            pooler=False,
            heads=("plain_masked_lm", "plain_next_sentence"),
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            activation_dropout=self.dropout,
            initializer_range=self.hidden_size**-0.5,  # a linear layer keeps the variance of its H inputs
        )

    def training(self, steps: int) -> Training:
        """The optimizer's settings and the schedule's."""
        return Training(
            learning_rate=self.learning_rate,
            lr_scheduler_type="inverse_sqrt",
            warmup_steps=self.warmup_steps,
            max_steps=max(steps, self.warmup_steps + 1),
        )
