"""What a diagnosis concludes, as frozen values."""

from dataclasses import dataclass

from conformance.judge.evidence import Estimate


@dataclass(frozen=True)
class FaultAttribution:
    """One fault of an explanation.

    Attributes:
        name: the fault's, as in the catalogue.
        places: the activations on whose steps it acts.
        where: the same in words.
        sentence: the fault in words, its number filled in.
        cause: how it usually comes about.
        estimate: for a fault that is a number got wrong.
    """

    name: str
    places: tuple[str, ...]
    where: str
    sentence: str
    cause: str
    estimate: Estimate | None


@dataclass(frozen=True)
class RankedExplanation:
    """A set of faults, a pooling and a format under which the oracle is nearest to the numbers.

    Attributes:
        faults: none where the pooling or the format alone explains.
        pooling: its name; empty where no embedding was given.
        pooling_differs: whether it is not the one that was asked for.
        dtype: the format that the system computes in.
        explains: whether what is left passes as rounding.
        rms, max: what is left, in sigma.
        z: of the faults' own pattern, in standard deviations of the noise's projection on it; None where nothing is moved.
        evidence: how much likelier it makes the numbers than the right network does, in nats.
        accounted: the share of Σ r²/σ² that it accounts for.
        free: how many numbers were fitted.
        tied: whether it cannot be distinguished from the best on these numbers.
        nll: −ln of the numbers' likelihood, up to a constant.
    """

    faults: tuple[FaultAttribution, ...]
    pooling: str
    pooling_differs: bool
    dtype: str
    explains: bool
    rms: float
    max: float
    z: float | None
    evidence: float
    accounted: float
    free: int
    tied: bool
    nll: float


@dataclass(frozen=True)
class Unseen:
    """A fault that the numbers would not have shown: what z would be if it were there, 0 where it changes none of them."""

    name: str
    expected_z: float


@dataclass(frozen=True)
class Diagnosis:
    """What the outputs of a closed system say.

    Attributes:
        conforms: whether the right network explains them.
        outputs: which were read, each with its number of judged elements.
        elements: how many in all.
        digits: decimals of the typical number; None where numbers are exact.
        dtype, arithmetic: the format that was promised, and the arithmetic by which the right network is nearest.
        poolings: those under which the right network explains an embedding.
        pooling: that under which the right network is nearest; empty where no embedding was given.
        sigma: the median of the numbers' own.
        rms, max: of the right network, in sigma.
        rms_limit, max_limit: what they may be at a false-alarm probability of 1e-6.
        shown: where it conforms, the faults that the numbers would have shown, at an expected z of 12, wherever each can act.
        unseen: those that they would not.
        called: faults whose own pattern is in the residual, where RMS and largest error alone would pass.
        explanations: best first.
        cut_short: a sentence on what the search left out, where its time ran out; else empty.
        unconfirmed: a sentence on the numbers of the checkpoint that its parameters do not show.
    """

    conforms: bool
    outputs: tuple[tuple[str, int], ...]
    elements: int
    digits: float | None
    dtype: str
    arithmetic: str
    poolings: tuple[str, ...]
    pooling: str
    sigma: float
    rms: float
    max: float
    rms_limit: float
    max_limit: float
    shown: tuple[str, ...]
    unseen: tuple[Unseen, ...]
    called: tuple[str, ...]
    explanations: tuple[RankedExplanation, ...]
    cut_short: str = ""
    unconfirmed: str = ""

    @property
    def tied(self) -> tuple[RankedExplanation, ...]:
        """The explanations that cannot be distinguished from the best, the best among them."""
        return tuple(e for e in self.explanations if e.tied)
