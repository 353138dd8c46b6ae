"""False alarms: correct variants on networks of several architectures and seeds, in every format, with each activation judged.

`python -m conformance.benchmarks.detection.alarms --write` writes `ALARMS.md`, beside this file; with `--device cuda` the variants
compute there, and `--write` writes `ALARMS.cuda.md`. With `--golden tiny wide`, the networks are those of these goldens, in which
each variant computes everywhere or, if it changes single modules, in one layer alone; `--write` writes `ALARMS.goldens.md`.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from conformance.benchmarks.detection.networks import ARCHITECTURES, INITIAL, network
from conformance.benchmarks.detection.score import draw
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.benchmarks.harness import parser, publish
from conformance.benchmarks.scored import Part, lines
from conformance.checks.check import Request
from conformance.checks.judgement import check_values
from conformance.numerics.devices import description
from conformance.numerics.formats import FORMATS
from conformance.results.result import Result

TABLE = Path(__file__).with_name("ALARMS.md")
NETWORKS = (*ARCHITECTURES, *INITIAL)
FIRST = 101  # The first seed; mistakes are planted in networks of other seeds.


def on_networks(seeds: int) -> Iterator[str]:
    """Yield every variant on `seeds` networks of each kind."""
    yield from (_name(*each) for each in product(VARIANTS, NETWORKS, range(FIRST, FIRST + seeds)))


def on_goldens(goldens: Sequence[str]) -> Iterator[str]:
    """Yield every variant on each golden's network: everywhere, and in one layer that is selected by hash."""
    for variant, golden in product(VARIANTS, goldens):
        yield _name(variant, golden, 1)
        layers = network(golden, 1).checkpoint.architecture.num_hidden_layers
        if layers > 1 and VARIANTS[variant].in_layer(0):
            yield _name(variant, golden, 1, int(draw((variant, golden)), 16) % layers)


def _name(variant: str, network: str, seed: int, layer: int | None = None) -> str:
    return f"{variant} | {network} | {seed}" + ("" if layer is None else f" | layer {layer}")


def judged(device: str, name: str, dtype: str) -> list[Result]:
    """Return the result of a correct variant on one network; none if the variant does not support the network.

    Raises:
        RuntimeError: the variant could not be judged.
    """
    variant, where, seed, *layer = name.split(" | ")
    candidate = VARIANTS[variant].in_layer(int(layer[0].removeprefix("layer "))) if layer else VARIANTS[variant]
    result = check_values(Request.of(candidate, network(where, int(seed)), device, dtype))
    if result.outcome not in ("pass", "fail", "skip"):
        raise RuntimeError(f"{name}, {dtype}: {result.outcome}: {result.reason}")
    return [] if result.outcome == "skip" else [result]


def main() -> None:
    """Judge all variants and print the table; `--write` saves it beside this file."""
    options = parser(__doc__, TABLE)
    options.add_argument("--seeds", type=int, default=4, help="of each kind of network (default: 4)")
    options.add_argument("--golden", nargs="+", metavar="NAME", help="goldens whose networks are used instead")
    options.add_argument("--device", default="cpu", help="device that the variants compute on (default: cpu)")
    chosen = options.parse_args()
    golden, device = chosen.golden, chosen.device
    if golden:
        names = on_goldens(golden)
        networks = (
            f"the networks of the goldens {', '.join(golden)}, each everywhere and, if it changes single modules, in one layer"
        )
    else:
        names = on_networks(chosen.seeds)
        kinds = f"{len(ARCHITECTURES)} architectures with discriminating weights, and {len(INITIAL)} deviations of initial weights"
        networks = f"networks of {len(NETWORKS)} kinds: {kinds}; {chosen.seeds} of each kind"
    candidates = {name: VARIANTS[name.split(" | ")[0]].dtypes for name in names}
    part = Part(
        f"{len(VARIANTS)} correct variants, in the formats in which each is correct, on {networks}",
        candidates,
        partial(judged, device),
    )
    suffix = ".".join([*["goldens"] * bool(golden), *[device.partition(":")[0]] * (device != "cpu"), "md"])
    title = "False alarms" if device == "cpu" else f"False alarms on {description(device) or device}"
    publish(TABLE.with_suffix(f".{suffix}"), title, lines(part, list(FORMATS), chosen.jobs), write=chosen.write)


if __name__ == "__main__":
    main()
