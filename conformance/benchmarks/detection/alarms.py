"""False alarms: correct variants on networks of several architectures and seeds, in every format, with each activation judged.

`python -m conformance.benchmarks.detection.alarms --write` writes `ALARMS.md`, beside this file; with `--device cuda` the variants
compute there, and `--write` writes `ALARMS.cuda.md`. With `--golden tiny wide`, the networks are those of these goldens, in which
each variant computes everywhere or, if it changes single modules, in one layer alone; `--write` writes `ALARMS.goldens.md`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from conformance.benchmarks.detection.bert import DTYPES
from conformance.benchmarks.detection.networks import ARCHITECTURES, INITIAL, network
from conformance.benchmarks.detection.score import draw
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.benchmarks.harness import bullets, in_processes, parser, publish, table
from conformance.checks.check import Request
from conformance.checks.judgement import check_values
from conformance.numerics.devices import description

TABLE = Path(__file__).with_name("ALARMS.md")
NETWORKS = (*ARCHITECTURES, *INITIAL)
FIRST = 101  # The first seed; mistakes are planted in networks of other seeds.


class Task(NamedTuple):
    """A correct variant on one network.

    Attributes:
        variant: name of the variant.
        network: name of the network.
        seed: seed of the network; a golden has one.
        dtype: format of the run.
        layer: the layer in which alone the variant computes; None for all steps.
    """

    variant: str
    network: str
    seed: int
    dtype: str
    layer: int | None = None


@dataclass(frozen=True)
class Alarms:
    """The result of a correct variant on one network.

    Attributes:
        dtype: format of the run.
        judged: number of activations judged.
        failed: description of each activation that failed.
    """

    dtype: str
    judged: int
    failed: tuple[str, ...]


def tasks_on_networks(seeds: int) -> list[Task]:
    """Return every variant on `seeds` networks of each kind, in each format."""
    return [Task(*one) for one in product(VARIANTS, NETWORKS, range(FIRST, FIRST + seeds), DTYPES)]


def tasks_on_goldens(goldens: Sequence[str]) -> Iterator[Task]:
    """Yield every variant on each golden's network, in each format: everywhere, and in one layer that is selected by hash."""
    for variant, golden, dtype in product(VARIANTS, goldens, DTYPES):
        yield Task(variant, golden, 1, dtype)
        layers = network(golden, 1).checkpoint.architecture.num_hidden_layers
        if layers > 1 and VARIANTS[variant].in_layer(0):
            yield Task(variant, golden, 1, dtype, int(draw((variant, golden, dtype)), 16) % layers)


def alarm(device: str, task: Task) -> Alarms:
    """Judge one correct variant on one network; no activation is judged if the variant does not support the case.

    Args:
        device: device that the variant computes on.
        task: the variant and the network.

    Raises:
        RuntimeError: the variant could not be judged.
    """
    variant, architecture, seed, dtype, layer = task
    candidate = VARIANTS[variant] if layer is None else VARIANTS[variant].in_layer(layer)
    assert candidate is not None
    result = check_values(Request.of(candidate, network(architecture, seed), device, dtype))
    if result.outcome not in ("pass", "fail", "skip"):
        raise RuntimeError(f"{task}: {result.outcome}: {result.reason}")
    judged = [v for v in result.verdicts if v.outcome in ("pass", "fail")]
    failed = [v.activation for v in judged if v.outcome == "fail"]
    where = "" if layer is None else f" in layer {layer}"
    return Alarms(dtype, len(judged), tuple(f"{variant}{where}, {architecture} {seed}, {dtype}: {name}" for name in failed))


def lines(every: Iterable[Alarms], networks: str) -> Iterator[str]:
    """Yield the table and the activations that failed.

    Args:
        every: the results.
        networks: the networks, as text.
    """
    yield f"Correct variants, {len(VARIANTS)} of them, in the formats in which each is correct, {networks}."
    yield ""
    alarms = list(every)
    of = {dtype: [each for each in alarms if each.dtype == dtype] for dtype in DTYPES} | {"all": alarms}
    counts = ((dtype, sum(a.judged for a in those), sum(len(a.failed) for a in those)) for dtype, those in of.items())
    yield from table(("dtype", "judged activations", "false alarms"), counts)
    yield from bullets(sorted(name for a in alarms for name in a.failed))


def _of_networks(seeds: int) -> str:
    kinds = f"{len(ARCHITECTURES)} architectures with discriminating weights, and {len(INITIAL)} deviations of initial weights"
    return f"on networks of {len(NETWORKS)} kinds: {kinds}; {seeds} of each kind"


def _of_goldens(goldens: Sequence[str]) -> str:
    where = "each everywhere and, if it changes single modules, in one layer alone"
    return f"on the networks of the goldens {', '.join(goldens)}: {where}"


def main() -> None:
    """Judge all variants and print the table; `--write` saves it beside this file."""
    options = parser(__doc__, TABLE)
    options.add_argument("--seeds", type=int, default=4, help="of each kind of network (default: 4)")
    options.add_argument("--golden", nargs="+", metavar="NAME", help="goldens whose networks are used instead")
    options.add_argument("--device", default="cpu", help="device that the variants compute on (default: cpu)")
    chosen = options.parse_args()
    golden, device = chosen.golden, chosen.device
    tasks = list(tasks_on_goldens(golden)) if golden else tasks_on_networks(chosen.seeds)
    every = in_processes(partial(alarm, device), tasks, chosen.jobs)
    kinds = [*(["goldens"] if golden else []), *([device.partition(":")[0]] if device != "cpu" else []), "md"]
    title = "False alarms" if device == "cpu" else f"False alarms on {description(device) or device}"
    networks = _of_goldens(golden) if golden else _of_networks(chosen.seeds)
    publish(TABLE.with_suffix(f".{'.'.join(kinds)}"), title, lines(every, networks), write=chosen.write)


if __name__ == "__main__":
    main()
