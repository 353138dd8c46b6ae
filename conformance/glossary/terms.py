"""The terms of reports, of `--help` and of the README: their meaning, and how they are computed.

Adding a term: a row of `JUDGEMENT` or `REPORTS`; `report.run.run_document` prints those that a failing report uses.
"""

import re
from collections.abc import Iterator, Mapping

from conformance.glossary.entry import Section
from conformance.glossary.term import Term
from conformance.glossary.terms_of_judgement import JUDGEMENT
from conformance.glossary.terms_of_reports import REPORTS

TERMS: Mapping[str, Term] = {**JUDGEMENT, **REPORTS}
_BY_LOWER_CASE = {name.lower(): name for name in TERMS}
_INDEX = re.compile(r" \d+( to \d+)?$")  # as in `layer 0`, `positions 1 to 15`

ALIASES = {
    "σ": "sigma",
    "rms": "local rms",
    "local": "local rms",
    "global": "global rms",
    "local error": "local rms",
    "global error": "global rms",
    "fault": "mistake",
    "finding": "mistake",
    "implementation": "candidate",
    "reference": "oracle",
    "input": "batch",
    "mask": "padding",
    "coverage": "judged",
    "exposed": "unexposed step",
    "hidden": "unexposed step",
    "hidden step": "unexposed step",
    "not exposed": "unexposed step",
    "conform": "conforms",
    "does not conform": "conforms",
    "ran": "declared",
    "first origin": "origin",
    "origin of the error": "origin",
    "origins, in order": "origin",
    "role": "amplifier",
    "filter": "matched filter",
    "excluded": "separable",
    "excludes": "separable",
    "not excluded": "separable",
    "cannot be distinguished": "indistinguishable",
    "numbers confirmed": "confirmed",
    "parameters confirmed": "confirmed",
    "numbers checked": "confirmed",
    "confirmed within": "confirmed",
    "least visible at": "confirmed",
    "breaks the contract": "outcome",
    "would have detected": "separable",
    "could have missed": "separable",
    "would not have detected": "separable",
    "median local error": "local rms",
    "catalogue": "mistake",
    "usual cause": "mistake",
    "noise": "sigma",
    "±": "estimate",
    "nats": "evidence",
    "dtype": "format",
    "bfloat16": "format",
    "float16": "format",
    "unit roundoff": "format",
    "depth": "screen",
    "full": "screen",
    "tier": "screen",
    "law": "check",
    "search": "counterexample",
    "smallest failing batch": "counterexample",
    "adaptor": "registration",
    "tolerance": "limit",
    "threshold": "limit",
    "rounding": "arithmetic",
    "rounding error": "sigma",
    "accumulated rounding": "global rms",
    "times the limit": "times what rounding explains",
    "what rounding explains": "times what rounding explains",
    "excess": "times what rounding explains",
    "unidentified": "unidentified error",
    "error without a name": "unidentified error",
    "an error without a name": "unidentified error",
    "copies": "only copy",
    "copy": "only copy",
    "bits": "significant bits",
    "every layer": "layer",
    "query": "position",
    "key": "masked keys",
    "mantissa": "significant bits",
    "units in the last place": "ULP",
    "begins here": "origin",
    "accumulated": "global rms",
    "activations judged": "judged",
    "error along it": "axis",
    "beyond the limit": "limit",
    "not supported": "supported",
    "supports": "supported",
    "differs": "residual",
    "activations": "activation",
    "schema": "results file",
    "results": "results file",
    "results.jsonl": "results file",
    "wrong": "origin",
    "layers exchanged": "layer order",
    "exchanged layers": "layer order",
    "order of layers": "layer order",
    "wrong order": "layer order",
    "order of computation": "layer order",
    "returned value": "returned tensor",
    "return value": "returned tensor",
}


def summaries() -> Mapping[str, str]:
    """Return the meaning of each term."""
    return {name: term.meaning for name, term in TERMS.items()}


def sections(name: str) -> Iterator[Section]:
    """Yield how a term is computed and read."""
    yield "details", TERMS[name].details


def names(written: str) -> tuple[str, ...]:
    """Return the term of this name, in any case, in the singular or the plural, with spaces or hyphens, or with an index."""
    plain = _INDEX.sub("", written.lower().replace("-", " ").replace("_", " "))
    found = (_BY_LOWER_CASE.get(ALIASES.get(name, name).lower()) for name in (plain, plain.removesuffix("s"), f"{plain}s"))
    return next(((term,) for term in found if term), ())
