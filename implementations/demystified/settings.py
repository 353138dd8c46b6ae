"""The settings of a run."""

from dataclasses import dataclass

from conformance import Architecture, Training, UsageError

from .wordpiece import SPECIAL


@dataclass(frozen=True)
class Settings:
    """The settings of a run, except the number of steps.

    Attributes:
        folder: folder of the dialogues.
        vocabulary_size, length, batch_size: maximum number of pieces; maximum number of tokens of a row; rows of a batch.
        layers, hidden_size, heads: sizes of the network; the intermediate size is four times the hidden size.
        dropout: rate of every dropout; a small corpus, seen many times in a few steps, is learnt faster without dropout.
        learning_rate, warmup_steps: the largest learning rate, and the step at which it is reached.
        seed: seed of all random draws.

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
        """Return the network's architecture for a vocabulary of this size."""
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
            initializer_range=self.hidden_size**-0.5,  # a linear layer then preserves the variance of its H inputs
        )

    def training(self, steps: int) -> Training:
        """Return the settings of the optimizer and the schedule."""
        return Training(
            learning_rate=self.learning_rate,
            lr_scheduler_type="inverse_sqrt",
            warmup_steps=self.warmup_steps,
            max_steps=max(steps, self.warmup_steps + 1),
        )
