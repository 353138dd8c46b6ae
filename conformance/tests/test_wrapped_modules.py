"""Modules that wrappers, pruning or autocast change, or that several layers share, are judged as they are run."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parameters_to_vector, prune, vector_to_parameters

from conformance import Tap, check
from conformance.candidates.capture import several_calls
from conformance.candidates.torch_implementation import names_in_state_dict
from conformance.checks.search.surroundings import Surroundings
from conformance.implementations.making_bert import making_bert

DENSE = "lm_head.mlp"


def test_parameters_that_a_wrapper_renames_in_the_state_dict_are_found_by_their_names_there() -> None:
    module = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)), nn.Linear(2, 2))
    assert names_in_state_dict(module) == {f"0._checkpoint_wrapped_module.{name}": f"0.{name}" for name in ("weight", "bias")}


@pytest.mark.parametrize(
    ("taps", "errors"),
    [
        ((Tap("0"), Tap("1")), 1),
        ((Tap("0"), Tap("1", call=1)), 0),
        ((Tap("0"), Tap("0", "input")), 0),
        ((Tap("0"), Tap("2")), 0),
    ],
)
def test_a_module_that_layers_share_has_a_tap_for_each_call(taps: tuple[Tap, ...], errors: int) -> None:
    shared = nn.GELU()
    found = several_calls({"0": shared, "1": shared, "2": nn.GELU()}, taps)
    assert len(found) == errors
    assert all("0, 1 are one module, which is called several times: name each call, as by Tap('1', call=1)" in e for e in found)


def test_the_judged_pass_has_the_callers_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        result = check(making_bert, "tiny")
    assert result.outcome == "fail"
    assert "dtype is bfloat16, expected float32" in " ".join(verdict.reason for verdict in result.failures)
    assert check(making_bert, "tiny").outcome == "pass"


def _pruned(a: Any) -> Any:
    model = making_bert.build(a)
    prune.identity(model.get_submodule(DENSE), "weight")  # type: ignore[no-untyped-call]  # torch's
    return model


def test_a_weight_that_pruning_computes_before_each_call_is_no_unregistered_tensor() -> None:
    parameters = {f"{name}_orig" if name == f"{DENSE}.weight" else name: of for name, of in making_bert.parameters.items()}
    pruned = replace(making_bert, build=_pruned, parameters=parameters, ignored=("*.weight_mask",))
    assert f"{DENSE}.weight_orig" in parameters
    assert check(pruned, "tiny", check="registered-tensors").outcome == "pass"


def test_parameters_that_are_views_of_one_buffer_are_different_tensors_and_can_be_saved(tmp_path: Path) -> None:
    flat, other = (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2))
    vector_to_parameters(parameters_to_vector(flat.parameters()).detach().clone(), flat.parameters())
    around = Surroundings(SimpleNamespace(module=flat), "cpu")
    state = around.module()
    assert state
    assert (len({t.storage for t in state.tensors.values()}), len({t.address for t in state.tensors.values()})) == (1, 4)
    around.save(tmp_path / "model.safetensors")
    Surroundings(SimpleNamespace(module=other), "cpu").load(tmp_path / "model.safetensors")
    assert all(torch.equal(one, two) for one, two in zip(flat.parameters(), other.parameters(), strict=True))
