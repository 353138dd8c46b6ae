"""A check, and a request to run one. Imports nothing heavy: names and descriptions are needed before any check runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conformance.checks.search.plan import USUAL, Plan
from conformance.results.case import Case

if TYPE_CHECKING:
    from conformance.goldens.golden import Golden
    from conformance.results.example import Example


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: what test ids, results and known failures call it.
        proves: what is true of a candidate that passes.
        catches: a mistake that it is there for.
        entry_point: a law, or a function of a request, in this package, `module:name`; imported when it is run.
        every_golden: whether it is for all goldens, or for the small ones alone.
        searches: whether its batches are drawn; else they are the golden's own.
        remedy: how a candidate that fails is usually repaired.
        inputs: what it is tried on, where that is neither drawn nor the golden's own.
        described_in: the module, in this package, whose docstring describes the method; that of the entry point if empty.
    """

    name: str
    proves: str
    catches: str
    entry_point: str
    every_golden: bool = False
    searches: bool = False
    remedy: str = ""
    inputs: str = ""
    described_in: str = ""


@dataclass(frozen=True)
class CheckRequest:
    """What is to be run, and how far.

    Attributes:
        case: how the result is keyed.
        candidate: the implementation.
        golden: the network, and the batches of it.
        runs: among how many checks the false-alarm probability is shared.
        plan: how examples are drawn.
        known: examples that are tried first.
        require: patterns of activations that must be observed, where all of them are judged.
    """

    case: Case
    candidate: Any
    golden: "Golden"
    runs: int = 1
    plan: Plan = USUAL
    known: "Sequence[Example]" = ()
    require: Sequence[str] = ()
