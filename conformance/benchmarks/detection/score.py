"""What the suite makes of the table of mistakes: how many are detected, placed and named, in which formats.

`python -m conformance.benchmarks.detection --write` writes `RESULTS.md`, beside this file.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.mistakes import MISTAKES, ROWS, Row
from conformance.benchmarks.detection.networks import ARCHITECTURES, network
from conformance.benchmarks.harness import bullets, in_processes, parser, publish, table
from conformance.checks.check import Request
from conformance.checks.judgement import check_values
from conformance.goldens.golden import Golden
from conformance.judge.filters import project
from conformance.judge.judged_elements import elements_to_explain
from conformance.judge.noise import of_segment
from conformance.judge.segment import Segment
from conformance.model.checkpoint import Checkpoint, rounded_weights
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.numerics.thresholds import FALSE_ALARM, SEPARABLE_Z, projection_threshold
from conformance.oracle import Network
from conformance.report.finding import Finding
from conformance.results.result import Result

TABLE = Path(__file__).with_name("RESULTS.md")
FORMATS = ("float32", "bfloat16", "float16")
NETWORKS = (*ARCHITECTURES, "odd-width", "position-offset")
HEADINGS = ("rows", "counted", "detected", "placed", "named", "described", "no name", "named wrongly", "estimates within error")


@dataclass(frozen=True)
class Trial:
    """A mistake in some layers of a network, in a format.

    Attributes:
        name: the mistake's name.
        network: the name of a network or of a golden.
        layers: the layers that it is in, if it can be in any.
        dtype: the format.
    """

    name: str
    network: str
    layers: tuple[int, ...]
    dtype: str

    @property
    def row(self) -> Row:
        """The mistake."""
        return MISTAKES[self.name]


@dataclass(frozen=True)
class Outcome:
    """What came of a trial.

    Attributes:
        trial: the trial.
        expected_z: the z of a filter made for just this effect, at the best of its steps.
        detected: whether the candidate does not conform.
        placed: whether every origin, and nothing else, is an origin of the result; an origin that rounding hides may lack.
        naming: `right`; `described`, if all that is found is named or described, and truly; `none`; or `wrong`.
        within: whether the estimates of the mistake's number lie within their error bars; None without an estimate.
    """

    trial: Trial
    expected_z: float
    detected: bool
    placed: bool
    naming: str
    within: bool | None

    @property
    def counted(self) -> bool:
        """Whether the mistake is distinguishable from rounding."""
        return self.expected_z >= SEPARABLE_Z

    @property
    def right(self) -> bool:
        """Whether it is detected and placed, and named or truly described if there is a right name for it."""
        said = self.naming in ("right", "described") if self.trial.row.says else self.naming != "wrong"
        return self.detected and self.placed and said and self.within is not False


def home(row: Row) -> str | None:
    """Return the first network that can have the mistake."""
    return next((name for name in NETWORKS if row.fits(network(name, 1).checkpoint.architecture)), None)


def trials(rows: Iterable[Row], dtypes: Collection[str], golden: str | None = None) -> Iterator[Trial]:
    """Yield each mistake in a layer that is selected by hash, and in all layers at once if it changes steps of a layer.

    Args:
        rows: the mistakes.
        dtypes: the formats.
        golden: the golden whose network is used; default: the first network that can have the mistake.
    """
    for row in rows:
        where = golden or home(row)
        if where is None or not row.fits(network(where, 1).checkpoint.architecture):
            continue
        count = network(where, 1).checkpoint.architecture.num_hidden_layers
        for dtype in dtypes:
            if dtype in row.dtypes:
                yield Trial(row.name, where, (int(draw((row.name, where, dtype)), 16) % count,), dtype)
                if row.layered and count > 1 and not row.of_whole_layer:
                    yield Trial(row.name, where, tuple(range(count)), dtype)


def draw(what: object) -> str:
    """Return a hexadecimal digest of what is drawn for."""
    return sha256(f"detection, 1: {what}".encode()).hexdigest()


def scored(trial: Trial) -> Outcome:
    """Plant a mistake, judge the candidate, and compare the findings with the mistake.

    Raises:
        RuntimeError: the candidate could not be judged.
    """
    golden = network(trial.network, 1)
    result = check_values(Request.of(Candidate([trial.row.at(*trial.layers)]), golden, dtype=trial.dtype))
    if result.outcome not in ("pass", "fail"):
        raise RuntimeError(f"{trial}: {result.outcome}: {result.reason}")
    return outcome(trial, result, golden)


def outcome(trial: Trial, result: Result, golden: Golden) -> Outcome:
    """Return the result, compared with what was planted and what that is rightly called."""
    begins = origins(trial, golden)
    failed = {verdict.activation for verdict in result.origins}
    placed = bool(failed) and failed <= frozenset().union(*begins) and all(failed & each for each in begins)
    naming = of_all({of_finding(finding, trial.row.says) for finding in result.findings})
    return Outcome(trial, expected_z(trial, golden), result.outcome == "fail", placed, naming, _within(trial, result))


def origins(trial: Trial, golden: Golden) -> list[frozenset[str]]:
    """Return where the mistake begins, for each layer that it is in."""
    a = golden.checkpoint.architecture
    return [trial.row.begins(a, layer) for layer in trial.layers]


def of_finding(finding: Finding, says: Collection[str]) -> str:
    """Return how one finding is named."""
    reported = {finding.name, *finding.others}
    if reported.isdisjoint(says):
        return "none" if None in reported else "described" if finding.is_description else "wrong"
    return "described" if finding.is_description else "right"


def of_all(each: Collection[str]) -> str:
    """Return the worst of all findings; `none` if there is no finding."""
    return next((naming for naming in ("wrong", "none", "described", "right") if naming in each), "none")


def _within(trial: Trial, result: Result) -> bool | None:
    """Return whether every estimate of the planted number lies within its error bar, rounded as the candidate rounds it."""
    if trial.row.value is None:
        return None
    accumulate = representative_hypothesis(trial.dtype).arithmetic.accumulate
    planted, near = float(accumulate.round(np.asarray(trial.row.value))), projection_threshold(FALSE_ALARM)
    faults = [f for v in result.origins if v.local for f in v.local.named if f.name in trial.row.says]
    estimates = [f.estimate for f in faults if f.estimate is not None]
    return all(abs(e.value - planted) <= near * e.deviation for e in estimates) if estimates else None


def expected_z(trial: Trial, golden: Golden) -> float:
    """Return the z that a filter made for this mistake would have at the best of its steps, from its effect in float64."""
    checkpoint = Checkpoint(golden.checkpoint.architecture, rounded_weights(golden.checkpoint, trial.dtype))
    ((_, batch),) = golden.batches.items()
    results = Candidate([trial.row.at(*trial.layers)]).prepare(checkpoint, "cpu", "float64")(batch.on("cpu"))
    values = {name: np.asarray(value.numpy(), np.float64) for name, value in results.items()}
    net, best = Network(checkpoint.architecture, checkpoint.weights, batch), 0.0
    order = list(net.table)
    for origin in frozenset().union(*origins(trial, golden)) & values.keys() & net.table.keys():
        segment = Segment(net, origin, {n: v for n, v in values.items() if order.index(n) < order.index(origin)})
        effect = values[origin] - segment.value
        judged = elements_to_explain(net.table[origin], batch, effect.shape)
        if net.table[origin].exact:
            best = float("inf") if np.where(judged, effect, 0.0).any() else best
        elif np.isfinite(effect[judged]).all():
            projected = project(effect, effect, of_segment(segment, representative_hypothesis(trial.dtype), judged))
            best = max(best, projected.expected_z if projected else 0.0)
    return best


def lines(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield a row for each format and number of layers, then what is missing from it."""
    every = list(outcomes)
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for each in every:
        where = "every layer" if len(each.trial.layers) > 1 else "alone"
        groups.setdefault((each.trial.dtype, where), []).append(each)
    yield HEADING
    yield from table(("format", "mistakes", *HEADINGS), ((*key, *_counts(group)) for key, group in groups.items()))
    short = [_short(each) for each in every if each.counted and not each.right]
    yield from ("", "Counted, and not as it should be:") if short else ()
    yield from bullets(short)


def _counts(group: Sequence[Outcome]) -> Iterator[object]:
    counted = [each for each in group if each.counted]
    yield from (len(group), len(counted), sum(each.detected for each in counted), sum(each.placed for each in counted))
    yield from (sum(each.naming == naming for each in counted) for naming in ("right", "described", "none", "wrong"))
    estimates = [each.within for each in counted if each.within is not None]
    yield f"{sum(estimates)} of {len(estimates)}"


def _short(each: Outcome) -> str:
    trial, z = each.trial, f"expected z {each.expected_z:.3g}"
    layers = "every layer" if len(trial.layers) > 1 else f"layer {trial.layers[0]}" if trial.row.layered else "its place"
    what = "not detected" if not each.detected else "not placed" if not each.placed else f"naming: {each.naming}"
    return f"{trial.name} in {layers} ({trial.network}, {trial.dtype}, {z}): {what}"


HEADING = """Every row of the table of mistakes, in the first of the benchmark's networks that can have it, in one layer
that is selected by hash and, without `--alone`, in all layers at once.
*Counted* are those whose expected z, that of a filter made for just that effect, is 12 or more; all further numbers are of these.
*Placed*: it fails where it begins, and nowhere else. *Named*: by a name that is right for it, alone or with what cannot be
distinguished from it. *No name* is all that can be right for the few rows without one.
Earlier results, among them those of the blind sets, are in [EARLIER.md](EARLIER.md).
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the trials and print the table; `--write` saves it beside this file."""
    options = parser(__doc__, TABLE)
    options.add_argument("--only", nargs="+", choices=list(MISTAKES), metavar="NAME", help="these mistakes alone")
    options.add_argument("--golden", help="in the network of this golden, which has a single batch")
    options.add_argument("--dtype", nargs="+", choices=FORMATS, default=list(FORMATS), help="the formats (default: each)")
    options.add_argument("--alone", action="store_true", help="each in one layer alone, not in every layer as well")
    chosen = options.parse_args(argv)
    if chosen.write and (chosen.only or chosen.golden):
        options.error("--write saves the table of all mistakes in their usual networks: leave --only and --golden out")
    rows = [MISTAKES[name] for name in chosen.only] if chosen.only else ROWS
    every = [trial for trial in trials(rows, chosen.dtype, chosen.golden) if len(trial.layers) == 1 or not chosen.alone]
    publish(TABLE, "Detection", lines(in_processes(scored, every, chosen.jobs)), write=chosen.write)
