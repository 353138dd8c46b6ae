"""Pooling: the ways from a hidden state (B, S, H) to an embedding (B, H) that are in question where nobody says which it was."""

from collections.abc import Mapping
from dataclasses import dataclass

from conformance.oracle import Step
from conformance.oracle.embeddings import Copy
from conformance.oracle.pooling import Maximum, Weighted

NORMALISED = "-normalised"


@dataclass(frozen=True)
class Pooling:
    """One way of pooling.

    Attributes:
        name: what `--pooling` calls it; normalised ones end in `-normalised`.
        sentence: the same for people.
    """

    name: str
    sentence: str

    @property
    def base(self) -> str:
        """Without the normalising."""
        return self.name.removesuffix(NORMALISED)

    @property
    def is_normalised(self) -> bool:
        """Whether each embedding is divided by its length."""
        return self.name.endswith(NORMALISED)


_PLAIN = (
    Pooling("cls", "the first token"),
    Pooling("mean", "the mean over the tokens that are not padding"),
    Pooling("mean-with-padding", "the mean over all tokens, padding as well"),
    Pooling("mean-without-special", "the mean without [CLS], [SEP] and padding"),
    Pooling("last", "the last token that is not padding"),
    Pooling("max", "the maximum over the tokens that are not padding"),
    Pooling("pooler", "the pooler's output"),
)
POOLINGS: Mapping[str, Pooling] = {
    p.name: p for plain in _PLAIN for p in (plain, Pooling(plain.name + NORMALISED, f"{plain.sentence}, normalised to length 1"))
}


def step_of(pooling: Pooling) -> type[Step]:
    """The equation of a pooling, without the normalising."""
    return {"max": Maximum, "pooler": Copy}.get(pooling.base, Weighted)
