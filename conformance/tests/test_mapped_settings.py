"""Settings that a mapped module cannot be given, such as its activation function: other networks are skipped, with the reason."""

import contextlib
from pathlib import Path

import pytest

from conformance import check, load_golden
from conformance.checks.catalogue import CHECKS
from conformance.cli import main
from conformance.goldens.manifest import manifest
from conformance.mapping.implementation import implementation_of
from conformance.mapping.source import adaptor, variable
from conformance.tests.third_party_models import STRANGERS, proposal

# Their constructors take sizes alone: GELU with erf, epsilon 1e-12, two token types, positions from 0.
FIXED = ("joined:JoinedBert", "packed:PackedBert")


@pytest.mark.landing(name=[*FIXED][0])
@pytest.mark.parametrize("name", FIXED)
def test_a_correct_model_with_fixed_settings_passes_or_is_skipped_on_every_golden(name: str) -> None:
    implementation = implementation_of(proposal(name))
    results = {golden: check(implementation, golden, depth="screen") for golden in manifest()}
    outcomes = {golden: result.outcome for golden, result in results.items()}
    assert set(outcomes.values()) == {"pass", "skip"}
    assert outcomes["tiny"] == "pass"
    for golden, setting in {"tanh": "hidden_act", "odd-width": "hidden_act", "position-offset": "layer_norm_eps"}.items():
        assert results[golden].reason.startswith(f"it takes no {setting}, and is judged with ")


def test_no_check_fails_for_the_adaptor_of_a_correct_model_with_fixed_settings() -> None:
    names: dict[str, object] = {}
    found = proposal("packed:PackedBert")
    assert found.fixed_rates
    exec(adaptor(found), names)
    quick = [c.name for c in CHECKS.values() if not c.searches]
    outcomes = {name: check(names[variable(found)], "tiny", check=name, depth="screen").outcome for name in quick}
    assert set(outcomes.values()) == {"pass", "skip"}
    assert (outcomes["values"], outcomes["training-mode"]) == ("pass", "skip")


def test_a_setting_that_the_constructor_takes_is_not_fixed() -> None:
    implementation, a = implementation_of(proposal("annotated:AnnotatedBert")), load_golden("tiny").checkpoint.architecture
    assert implementation.supports(a.with_(layer_norm_eps=1e-5, type_vocab_size=3), "cpu", "float32") is None
    assert "hidden_act" in str(implementation.supports(a.with_(hidden_act="relu"), "cpu", "float32"))


def test_another_activation_function_is_accepted_beside_that_of_bert_which_is_still_judged() -> None:
    found = proposal("mistaken:TanhBert")
    assert found.computes == "gelu_new"
    assert found.differs[0].startswith("it takes no hidden_act and computes gelu_new")
    implementation, a = implementation_of(found), load_golden("tiny").checkpoint.architecture
    for function in ("gelu", "gelu_new", "gelu_pytorch_tanh"):
        assert implementation.supports(a.with_(hidden_act=function), "cpu", "float32") is None
    assert implementation.supports(a.with_(hidden_act="relu"), "cpu", "float32") is not None
    assert check(implementation, "tiny", depth="screen").outcome == "fail"


def test_map_prints_what_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.chdir(tmp_path):
        assert main(["map", f"{STRANGERS}.packed:PackedBert", "-o", "adaptor.py"]) == 0
    shown = capsys.readouterr().out
    assert 'skipped if  a.hidden_act != "gelu"' in shown
    assert "in training mode" in shown
    assert "supported=supported," in (tmp_path / "adaptor.py").read_text("utf-8")
