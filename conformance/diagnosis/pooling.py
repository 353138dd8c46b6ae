"""Poolings: the functions from a hidden state (B, S, H) to an embedding (B, H) that a system may use."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle import Step
from conformance.oracle.embeddings import Copy, Exact
from conformance.oracle.linear_maps import LinearMap
from conformance.oracle.pooling import WEIGHTS, Maximum, Unit, Weighted

EMBEDDING = "embedding"
PREFIX = f"{EMBEDDING}."  # of the names of the steps of a pooling
NORMALISED, CUT = "-normalised", "-cut"
UNIT, LEADING = "unit", "leading"  # kinds of the steps that normalise an embedding, and that keep its first features


class Leading(Exact):
    """The first features of each row, as many as the activation has: a shortened embedding."""

    @cached_property
    def value(self) -> Array:
        """The features that are kept."""
        return self.parents[0][:, : self.site.activation.width]

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the map that keeps the first features, whose adjoint adds zeros for the others."""
        shape, width = self.parents[0].shape, self.site.activation.width
        pads = ((0, 0), (0, shape[1] - width))
        return (LinearMap(lambda v: np.broadcast_to(v, shape)[:, :width], lambda w: np.pad(w, pads)),)


EQUATIONS: Mapping[str, type[Step]] = {
    **dict.fromkeys(WEIGHTS, Weighted),
    "max": Maximum,
    "pooler": Copy,
    UNIT: Unit,
    LEADING: Leading,
}  # by the kind of a step


@dataclass(frozen=True)
class Pooling:
    """A pooling.

    Attributes:
        name: name for `--pooling`; the names of normalised poolings end in `-normalised`, and in `-normalised-cut` if a shortened
            embedding is cut after it was normalised.
        sentence: description of the pooling; `{features}` stands for the number of features of a shortened embedding.
        mistake: name of the fault that is this pooling in place of another one; empty if the catalogue has none.
        reads_padding: whether the embedding depends on positions that the mask excludes.
    """

    name: str
    sentence: str
    mistake: str = ""
    reads_padding: bool = False

    @property
    def base(self) -> str:
        """The name of the pooling without normalisation."""
        return self.name.removesuffix(CUT).removesuffix(NORMALISED)

    @property
    def is_normalised(self) -> bool:
        """Whether each embedding is divided by its length."""
        return NORMALISED in self.name

    @property
    def is_cut_last(self) -> bool:
        """Whether a shortened embedding is not normalised again after it was cut."""
        return self.name.endswith(CUT)

    def steps(self, features: int | None) -> tuple[tuple[str, str], ...]:
        """Return the name and the kind of each step; `features` is the number that is kept, None if all are."""
        after = [LEADING] * (features is not None) + [UNIT] * self.is_normalised
        kinds = [self.base, *(reversed(after) if self.is_cut_last else after)]
        return tuple((PREFIX + ".".join(kinds[: i + 1]), kind) for i, kind in enumerate(kinds))

    def name_of_result(self, features: int | None) -> str:
        """Return the name of the last step."""
        return self.steps(features)[-1][0]


_PLAIN = (
    Pooling("cls", "the first token", "pooling-first-token"),
    Pooling("mean", "the mean over the tokens that are not padding", "pooling-mean"),
    Pooling("mean-sqrt-length", "the sum over the tokens that are not padding, divided by the root of their number"),
    Pooling("weighted-mean", "the mean over the tokens that are not padding, weighted by their places, 1 for the first"),
    Pooling("mean-with-padding", "the mean over all tokens, padding as well", "pooling-with-padding", reads_padding=True),
    Pooling("mean-without-special", "the mean without [CLS], [SEP] and padding", "pooling-without-special"),
    Pooling("last", "the last token that is not padding"),
    Pooling("max", "the maximum over the tokens that are not padding", "pooling-max"),
    Pooling("pooler", "the pooler's output"),
)
_NORMALISED = tuple(replace(p, name=p.name + NORMALISED, sentence=f"{p.sentence}, normalised to length 1") for p in _PLAIN)
_CUT_LAST = tuple(
    replace(p, name=p.name + CUT, mistake="", sentence=f"{p.sentence} and then cut to {{features}} features, not normalised again")
    for p in _NORMALISED
)
POOLINGS: Mapping[str, Pooling] = {p.name: p for alike in zip(_PLAIN, _NORMALISED, _CUT_LAST, strict=True) for p in alike}


def declared(architecture: Architecture) -> str | None:
    """Return the name of the pooling that a sentence-transformers checkpoint declares, or None for any other checkpoint."""
    return architecture.pooling + NORMALISED * architecture.normalize or None


def in_question(architecture: Architecture, batch: Batch, asked: str | None, features: int | None) -> tuple[Pooling, ...]:
    """Return the poolings that are different functions on this batch: the one asked for first, those that are cut last at the end.

    `features` is the number of features of shortened embeddings; None if they are whole.
    """
    different: dict[tuple[object, ...], Pooling] = {}
    for pooling in sorted(POOLINGS.values(), key=lambda p: (p.name != asked, p.is_cut_last)):
        if pooling.is_cut_last and features is None:
            continue
        if pooling.base != "pooler" or architecture.pooler:
            different.setdefault(_identity(pooling, batch), pooling)
    return tuple(different.values())


def _identity(pooling: Pooling, batch: Batch) -> tuple[object, ...]:
    """Return a key that is equal for poolings that are the same function; normalisation removes constant factors."""
    if pooling.base not in WEIGHTS:
        return pooling.base, pooling.is_normalised, pooling.is_cut_last
    weights = WEIGHTS[pooling.base](batch.mask)
    factor = weights.max(1, keepdims=True) if pooling.is_normalised else np.ones((len(weights), 1))
    return (weights / factor).tobytes(), pooling.is_normalised, pooling.is_cut_last
