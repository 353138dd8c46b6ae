"""The trials: every mistake alone at every place, and several mistakes together, selected by hashes instead of by hand."""

from collections.abc import Collection, Iterator
from functools import cache, partial
from hashlib import sha256
from itertools import chain, combinations, product

from conformance.benchmarks.detection.names import HELD_OUT
from conformance.benchmarks.detection.networks import ARCHITECTURES, LAYERS, network
from conformance.benchmarks.detection.planted import PLANTS
from conformance.benchmarks.detection.trial import Place, Trial
from conformance.faults import CATALOGUE

SEEDS = 3
DTYPES = ("float32", "bfloat16", "float16")

LAYER_SEQUENCE = frozenset(fault.name for fault in CATALOGUE if fault.replaces_layer)
"""Names of the mistakes that change the sequence of layers."""

SAME_STEP = (
    ("epsilon", "residual-doubled"), ("epsilon", "residual-missing"), ("norm-variance", "residual-missing"),
    ("epsilon", "sublayer-missing"), ("query-key-swapped", "pre-norm"), ("norm-without-mean", "residual-doubled"),
    ("epsilon", "norm-bias-missing"), ("bias-missing", "features-dropped"),
)  # fmt: skip
"""Pairs of mistakes at the same step, if the modules allow both to be planted."""


@cache
def home(name: str) -> str | None:
    """Return the first architecture in which the mistake is possible, or None."""
    return next((which for which, a in ARCHITECTURES.items() if PLANTS[name].suits(a)), None)


def places(name: str, layers: int = LAYERS) -> Iterator[Place]:
    """Yield the mistake in every layer, or in its single place."""
    return ((name, layer) for layer in range(layers if PLANTS[name].layered else 1))


def singles(dtype: str) -> Iterator[Trial]:
    """Yield trials of every mistake alone, at every place, in a network with one of the seeds."""
    for name, plant in PLANTS.items():
        architecture = home(name)
        if architecture is not None and dtype in plant.dtypes:
            yield from (Trial((place,), architecture, _seed((place, dtype)), dtype) for place in places(name))


def everywhere(dtype: str) -> Iterator[Trial]:
    """Yield trials of every mistake planted in all layers at once, except mistakes that change the sequence of layers."""
    for name, plant in PLANTS.items():
        architecture = home(name)
        if architecture is not None and dtype in plant.dtypes and plant.layered and name not in LAYER_SEQUENCE:
            yield Trial(tuple(places(name)), architecture, _seed((name, dtype)), dtype)


def together(count: int, how_many: int, dtype: str) -> Iterator[Trial]:
    """Yield trials of sets of named mistakes that begin at different steps, selected by the smallest hashes.

    Args:
        count: number of mistakes in a set.
        how_many: number of sets.
        dtype: format of the trials.
    """
    drawn = sorted(_sets(count, dtype), key=draw)[:how_many]
    yield from (Trial(chosen, "bert", _seed((chosen, dtype)), dtype) for chosen in drawn)


def at_one_step(dtype: str) -> Iterator[Trial]:
    """Yield trials of the pairs at one step, in every layer."""
    for pair in SAME_STEP:
        yield from (Trial(tuple((name, layer) for name in pair), "bert", 1 + layer % SEEDS, dtype) for layer in range(LAYERS))


def _sets(count: int, dtype: str) -> Iterator[tuple[Place, ...]]:
    """Yield a few thousand sets: in the order of hashes, each mistake in a layer chosen by hash, with its neighbours."""
    for salt in range(40):
        names = sorted(_named(dtype), key=partial(_salted, salt))
        for start in range(0, len(names) - count, count):
            chosen = tuple(
                (n, int(draw((n, salt, "layer")), 16) % LAYERS if PLANTS[n].layered else 0) for n in names[start : start + count]
            )
            if all(_apart(a, b) for a, b in combinations(chosen, 2)):
                yield chosen


def _named(dtype: str) -> Iterator[str]:
    """Yield the mistakes that have names and are possible in the standard architecture."""
    return (n for n in PLANTS if home(n) == "bert" and n not in HELD_OUT and dtype in PLANTS[n].dtypes)


def _salted(salt: int, name: str) -> str:
    return draw((name, salt))


def _apart(a: Place, b: Place) -> bool:
    """Return whether two mistakes begin at different steps, and neither removes or repeats the layer of the other."""
    architecture = ARCHITECTURES["bert"]
    mine, theirs = (PLANTS[name].origins(architecture, layer) for name, layer in (a, b))
    touched = any(x[0] in LAYER_SEQUENCE and f"encoder.layer.{x[1]}." in " ".join(o) for x, o in ((a, theirs), (b, mine)))
    return not (mine & theirs) and not touched and not (a[0] in LAYER_SEQUENCE and b[0] in LAYER_SEQUENCE)


def draw(what: object) -> str:
    """Return a hexadecimal digest of what is drawn for."""
    return sha256(f"detection, 1: {what}".encode()).hexdigest()


def _seed(what: object) -> int:
    return 1 + int(draw(what), 16) % SEEDS


def of_mistakes(names: Collection[str]) -> Iterator[tuple[str, Trial]]:
    """Yield the trials of these mistakes, each alone and in every layer, in each format in which it is a mistake."""
    for dtype in sorted({dtype for name in names for dtype in PLANTS[name].dtypes}):
        yield from ((kind, trial) for kind, trial in _of_one_mistake(dtype) if trial.plants[0][0] in names)


def of_goldens(goldens: Collection[str], dtypes: Collection[str]) -> Iterator[tuple[str, Trial]]:
    """Yield the trials of every mistake in shipped goldens' networks: in a layer selected by hash, and in all layers at once."""
    return chain.from_iterable(_of_golden(golden, dtypes) for golden in goldens)


def _of_golden(golden: str, dtypes: Collection[str]) -> Iterator[tuple[str, Trial]]:
    architecture = network(golden, 1).checkpoint.architecture
    possible = [name for name, plant in PLANTS.items() if plant.suits(architecture)]
    for dtype, name in product(dtypes, possible):
        if dtype in PLANTS[name].dtypes:
            kind = f"held out, {golden}" if name in HELD_OUT else golden
            every = tuple(places(name, architecture.num_hidden_layers))
            yield kind, Trial((every[int(draw((name, golden, dtype)), 16) % len(every)],), golden, 1, dtype)
            if len(every) > 1 and name not in LAYER_SEQUENCE:
                yield f"{kind}, every layer", Trial(every, golden, 1, dtype)


def everything(pairs: int, triples: int) -> Iterator[tuple[str, Trial]]:
    """Yield every trial, with the row of the table in which it is counted."""
    for dtype in DTYPES:
        yield from _of_one_mistake(dtype)
        kinds = (("pairs", together(2, pairs, dtype)), ("triples", together(3, triples, dtype)), ("one step", at_one_step(dtype)))
        yield from chain.from_iterable(((kind, trial) for trial in trials) for kind, trials in kinds)


def _of_one_mistake(dtype: str) -> Iterator[tuple[str, Trial]]:
    """Yield the trials of a single mistake, alone and in every layer, with their rows of the table."""
    for trial in singles(dtype):
        yield ("held out" if trial.plants[0][0] in HELD_OUT else "alone"), trial
    for trial in everywhere(dtype):
        yield ("held out, every layer" if trial.plants[0][0] in HELD_OUT else "every layer"), trial
