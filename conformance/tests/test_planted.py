"""Every planted mistake is at its declared places and nowhere else; the module without a mistake conforms."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from conformance import Golden, check, golden_of, load_golden
from conformance.benchmarks.detection import score
from conformance.benchmarks.detection.bert import Bert, Candidate, recording
from conformance.benchmarks.detection.names import CONSTRUCTED, LISTED
from conformance.benchmarks.detection.planted import PLANTS, ROWS, Plant
from conformance.judge.judged_elements import judged_elements
from conformance.model.activations import table
from conformance.model.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

OWN = ("token-heads", "sentence-heads", "position-offset")  # Networks used only where no other can have the mistake.
NETWORKS = ("three layers", "tanh", "sinusoidal", *OWN)


@cache
def golden(name: str) -> Golden:
    """Return a small golden: `tiny` with id 0 among its tokens, with the tanh form or one more layer; or a shipped golden."""
    if name in ("sinusoidal", *OWN):
        return load_golden(name)
    tiny = load_golden("tiny")
    batch = tiny.batches["padded"]
    ids = np.where(np.arange(batch.length) == batch.mask.argmax(1)[:, None] + 1, 0, batch.input_ids)
    a, weights = tiny.checkpoint.architecture, dict(tiny.checkpoint.weights)
    if name == "tanh":
        a = replace(a, hidden_act="gelu_new")
    if name == "three layers":
        a = replace(a, num_hidden_layers=3)
        own = {n: w for n, w in weights.items() if "layer.1." in n}
        weights |= {n.replace("layer.1.", "layer.2."): np.roll(w, 1, -1) for n, w in own.items()}
    return golden_of(name, Checkpoint(a, weights), {"padded": replace(batch, input_ids=ids)})


def test_every_mistake_of_the_fixed_lists_is_planted_and_none_twice() -> None:
    assert {*LISTED, *CONSTRUCTED} - PLANTS.keys() == set()
    assert len(LISTED) + len(CONSTRUCTED) == len({*LISTED, *CONSTRUCTED})
    assert len(ROWS) == len(PLANTS)


def test_every_mistake_has_a_description_of_its_own() -> None:
    descriptions = [plant.description for plant in ROWS]
    assert all(descriptions)
    assert [text for text in descriptions if text.startswith("the same")] == []  # Its row is read without its neighbours.


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("network", NETWORKS)
def test_without_a_mistake_the_module_conforms_and_shows_everything(network: str, dtype: str) -> None:
    result = check(Candidate(), golden(network), dtype=dtype)
    assert result.conforms, (result.reason, [(v.place, v.local and v.local.error) for v in result.origins])
    judged, activations = result.coverage
    assert judged == activations


def made(model: Bert, batch: Any, instead: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the result of every step; each step reads the values in `instead` where an activation has one."""
    found = recording(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, value in (instead or {}).items():
        modules[name].register_forward_hook(lambda *_, value=value: value)
    with torch.no_grad():
        model(batch)
    return dict(found)


def wrong_steps(plant: Plant, layer: int, given: Golden) -> frozenset[str]:
    """Return the activations that differ from the correct step applied to the inputs that it received."""
    (batch,) = given.batches.values()
    dtype = plant.dtypes[0]
    shown = Candidate((plant.at(layer),)).prepare(given.checkpoint, "cpu", dtype)(batch.on("cpu"))
    right = made(Candidate().build(given.checkpoint, "cpu", dtype), batch.on("cpu"), shown)
    rows, room = table(given.checkpoint.architecture), 1e-9 if dtype == "float64" else 1e-5
    found = set()
    for name, value in shown.items():
        judged = judged_elements(rows[name], batch, tuple(value.shape)) if value.shape[:1] != (1,) else np.ones(value.shape, bool)
        difference = (value - right[name]).abs().double().numpy()[judged]
        assert np.isfinite(difference).all(), name
        if difference.max() > room * float(right[name].abs().max()):
            found.add(name)
    return frozenset(found)


def _places(plant: Plant) -> list[tuple[str, int]]:
    """Return the networks that can have the mistake (the last four only where no other can), in the first and in the last
    layer."""
    found = []
    for network in ("three layers", "sinusoidal", "tanh", *OWN):
        a = golden(network).checkpoint.architecture
        if plant.suits(a) and not (found and network in ("tanh", *OWN)):
            found += [(network, layer) for layer in ((0, a.num_hidden_layers - 1) if plant.layered else (0,))]
    return found


# In these, only padding would change: id 0 and token type 0 occur nowhere else, and all padding is on the right.
UNSEEN = {
    *((name, "sinusoidal") for name in ("padding-word-zeroed", "token-type-zero-zeroed")),
    *((name, "sinusoidal") for name in ("positions-counted-by-mask", "mask-to-last")),
    *((name, "sinusoidal") for name in ("tokens-packed-left", "tokens-packed-left-norm")),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_mistake_is_at_its_origins_and_nowhere_else(name: str) -> None:
    plant = PLANTS[name]
    places = [(network, layer) for network, layer in _places(plant) if (name, network) not in UNSEEN]
    assert places
    for network, layer in places:
        given = golden(network)
        expected = plant.origins(given.checkpoint.architecture, layer)
        assert expected
        assert wrong_steps(plant, layer, given) == expected, (network, layer)


def test_the_table_has_the_command_with_its_numbers_of_sets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(score, "everything", lambda pairs, triples: [])
    score.main(["--pairs", "3", "--triples", "2", "--processes", "1"])
    assert "`python -m conformance.benchmarks.detection --pairs 3 --triples 2 --write`" in capsys.readouterr().out
