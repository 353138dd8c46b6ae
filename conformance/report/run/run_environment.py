"""Environment of a run, that is versions, machine, candidates and goldens, and the glossary of its page."""

from collections.abc import Iterator

from conformance.numerics.functions import FUNCTIONS
from conformance.numerics.thresholds import FALSE_ALARM_TEXT
from conformance.report.document import Block, Column, Folded, Heading, Lists, tabled
from conformance.results.records import FunctionRecord, Header, Results

_READING = {
    "σ (sigma)": "The standard deviation of the rounding error that a correct implementation may make in one number: derived from "
    "the floating-point format and the inputs, step by step and element by element. No tolerance is set by hand.",
    "limit": "The green band: how large the root mean square of an activation's local errors may be, at a false-alarm "
    f"probability of {FALSE_ALARM_TEXT} a run. The largest error of a single element (max) has a limit of its own, about 8 σ.",
    "allowed": "Of one wrong element: the largest difference from its expected value that passes, in the tensor's unit, not in σ.",
    "local error": "How far a step's result is from the exact one for the inputs that the candidate itself gave it. Only the step "
    "that is wrong has one beyond the limit, whatever went wrong before it.",
    "judged, exposed": "A candidate exposes an activation if it returns it. Every exposed activation is judged, except at "
    "positions that the attention mask excludes (padding): a correct candidate may compute anything there. A step that is not "
    "exposed is judged as a part of the next exposed one; steps after the last exposed one are not judged.",
    "global error": "How far it is from the exact result since the token ids, in the σ of accumulated rounding. After a mistake, "
    "all that follows has one.",
    "origin": "An exposed activation whose local error is beyond the limit: an error begins there, or in steps before it that are "
    "not exposed. This is where to look.",
    "amplifier, attenuator": "A correct step that enlarges, or reduces, the error of earlier steps more than it would random "
    "errors; nothing to repair.",
    "exact": "A step that rounds nothing, such as looking up a table: any difference at all is an error.",
    "amplitude, z": "How much of the named mistake is in the error, 1 being all of it, and by how many standard deviations it "
    "differs from rounding. The amplitude is not given for a mistake with an estimated number or with fitted "
    "parameters: they make it 1.",
    "±": "One standard deviation of an estimated number.",
    "golden": "A network with the inputs that candidates are run on. Layers, heads, rows and positions count from 0.",
}


def reading() -> Block:
    """Return the glossary of a run's page, folded."""
    return Folded("How to read this", (Lists.of_terms(_READING),))


def environment(results: Results) -> Iterator[Block]:
    """Yield the blocks about software, machine, candidates and goldens of a run."""
    headers = [h for n, h in enumerate(results.headers) if h not in results.headers[:n]]
    if not headers:
        return
    yield Heading("Environment", level=2)
    yield from (Lists(tuple((what, (said,)) for what, said in _facts(header) if said)) for header in headers)
    judged = {check.implementation for check in results.checks}
    candidates = {
        (name, i.distribution, i.version, i.origin) for h in headers for name, i in h.implementations.items() if name in judged
    }
    named = {name for name, *_ in candidates}
    candidates |= {(name, "unknown, as of any that is not registered", "", "") for name in judged - named}
    columns = (Column("candidate"), *(Column(head, is_text=True) for head in ("distribution", "version", "object")))
    yield from tabled(columns, [("", sorted(candidates))])
    columns = (
        Column("golden"),
        *(Column(head, is_text=True) for head in ("version", "network", "SHA-256 of inputs", "of weights", "")),
    )
    stored = {name: golden for h in headers for name, golden in h.goldens.items()}
    rows = [
        (name, str(g.version), g.source, g.stored_digest, g.weights_digest, g.unconfirmed) for name, g in sorted(stored.items())
    ]
    yield from tabled(columns, [("", rows)])


def _largest_error(name: str, measured: FunctionRecord) -> str:
    """Return the absolute error of a function with a bounded scale, otherwise the error in ULP."""
    is_absolute = name not in FUNCTIONS or FUNCTIONS[name].has_zero
    value = measured.absolute if is_absolute else measured.ulp
    return "not finite" if value is None else f"{value:.2g}" if is_absolute else f"{value:.2g} ULP"


def _facts(h: Header) -> Iterator[tuple[str, str]]:
    yield "suite", f"{h.suite}, results of schema {h.schema}"
    yield "Python", h.python
    yield "torch", h.torch
    yield "transformers", h.transformers or "not installed"
    yield "NumPy", h.numpy
    yield "ONNX Runtime", h.onnxruntime or ""
    yield "platform", h.platform
    yield "processor", f"{h.processor}; {h.threads} threads"
    if h.machine:
        bits = ", ".join(f"{name} {'unknown' if bits is None else bits}" for name, bits in h.machine.products.items())
        settings = ", ".join(f"{name} {value}" for name, value in h.machine.settings.items())
        yield "float32", f"{h.machine.instruction_set}; effective bits of products: {bits}; {settings}"
        errors = (f"{name} {_largest_error(name, f)}" for name, f in h.machine.functions.items())
        yield (
            "functions",
            f"largest errors, absolute or in ULP: {', '.join(errors)}; for gelu and gelu_tanh: the error of their erf or tanh",
        )
    yield "GPU", h.gpu or "none"
    yield "false alarms", f"{h.false_alarm} a run"
    yield "searches", f"{h.examples} example{'s' * (h.examples != 1)}{'' if h.seed is None else f', seed {h.seed}'}"
