"""The catalogue of faults: mistakes that real BERTs have had, each a small change of one step of the oracle.

A fault strikes steps of certain kinds; `change` returns what a step computes when it has the fault, from the same parents, or
None where the fault makes no sense there. The difference to the right value is the fault's direction (see `judge.filters`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from conformance.activations import Activation
from conformance.numerics.formats import Array
from conformance.oracle import Network, Step
from conformance.oracle.pointwise import gelu, gelu_tanh
from conformance.oracle.products import Scores, split_heads

Change = Callable[[Step, Network], Array | None]


@dataclass(frozen=True)
class Parameter:
    """What a fault got wrong, where it is a number.

    Attributes:
        right, wrong: its value in the checkpoint, and the fault's usual one.
        result: the step's result with any other value.
        least: values at or below it make no sense.
    """

    name: str
    right: float
    wrong: float
    result: Callable[[float], Array]
    least: float = 0.0


@dataclass(frozen=True)
class Fault:
    """One mistake.

    Attributes:
        name: what the results file calls it.
        kinds: the kinds of step that it strikes.
        change: the step's result with the fault.
        sentence: the fault, told to a person.
        source: where it was seen.
        only: end of the activation's name, where not every step of a kind is struck.
        parameter: from a step, its number and the fault's, where there is one.
    """

    name: str
    kinds: frozenset[str]
    change: Change
    sentence: str
    source: str
    only: str = ""
    parameter: Callable[[Step], Parameter] | None = None

    def strikes(self, row: Activation) -> bool:
        """Whether it can happen at this activation."""
        return row.kind in self.kinds and row.name.endswith(self.only)


def _again(step: Step, **changes: object) -> Array:
    """The same equation on the same parents at a changed site."""
    return type(step)(replace(step.site, **changes), *step.parents).value  # type: ignore[arg-type]


def _with_parameters(step: Step, **parameters: Array) -> Array:
    return _again(step, parameters={**step.site.parameters, **parameters})


def _activation_form(step: Step, _: Network) -> Array:
    return (gelu_tanh if step.site.activation.kind == "gelu" else gelu)(step.parents[0])


def _epsilon_parameter(step: Step) -> Parameter:
    architecture = step.site.architecture
    right = architecture.layer_norm_eps

    def result(epsilon: float) -> Array:
        return _again(step, architecture=architecture.with_(layer_norm_eps=epsilon))

    return Parameter("epsilon", right, 1e-12 if right > 1e-6 else 1e-5, result)


def _epsilon(step: Step, _: Network) -> Array:
    parameter = _epsilon_parameter(step)
    return parameter.result(parameter.wrong)


def _scale_missing(step: Step, _: Network) -> Array:
    parameter = _scale_parameter(step)
    return parameter.result(parameter.wrong)


def _scale_parameter(step: Step) -> Parameter:
    assert isinstance(step, Scores)
    right = step.scale
    return Parameter("scale", right, 1.0, lambda scale: step.value * (scale / right))


def _mask_ignored(step: Step, _: Network) -> Array:
    return _again(step, batch=replace(step.site.batch, attention_mask=None))


def _residual_missing(step: Step, _: Network) -> Array | None:
    return type(step)(step.site, step.parents[0]).value if len(step.parents) == 2 else None


def _head_order(step: Step, _: Network) -> Array:
    """Heads merged without moving the head axis behind the positions first."""
    heads = step.site.architecture.num_attention_heads
    stacked = split_heads(step.value, heads)
    return stacked.reshape(step.value.shape)


def _token_types_ignored(step: Step, _: Network) -> Array:
    return _again(step, batch=replace(step.site.batch, token_type_ids=None))


def _positions_shifted(step: Step, _: Network) -> Array | None:
    """Counted from one past the padding id, RoBERTa's convention, clipped to the table."""
    table, length = step.site.parameters["weight"], step.site.batch.length
    rows = np.minimum(np.arange(length) + 2, len(table) - 1)
    return np.broadcast_to(table[rows], step.value.shape)


def _bias_missing(step: Step, _: Network) -> Array:
    return _with_parameters(step, bias=np.zeros_like(step.site.parameters["bias"]))


def _unbiased_variance(step: Step, _: Network) -> Array:
    """√(n/(n − 1)) of the deviation instead of it: z shrinks by √((n − 1)/n)."""
    n, beta = step.value.shape[-1], step.site.parameters["bias"]
    return (step.value - beta) * float(np.sqrt((n - 1) / n)) + beta


def _other_projection(step: Step, network: Network) -> Array | None:
    """The query computed with the key's parameters, and the other way round."""
    name = step.site.activation.name
    ours, theirs = ("query", "key") if name.endswith("query") else ("key", "query")
    if not name.endswith(ours):
        return None
    return _with_parameters(step, **network.site(name.removesuffix(ours) + theirs).parameters)


def _last_token(step: Step, _: Network) -> Array:
    return type(step)(step.site, step.parents[0][:, ::-1]).value


def _catalogue() -> tuple[Fault, ...]:
    norms, linears = frozenset({"norm"}), frozenset({"linear", "first_token_linear"})
    gelus = frozenset({"gelu", "gelu_new", "gelu_pytorch_tanh"})
    return (
        Fault("activation-form", gelus, _activation_form,
              "GELU takes the other form (tanh for erf, or erf for tanh)", "candle#900, transformers#11364"),
        Fault("epsilon", norms, _epsilon, "LayerNorm epsilon is not the checkpoint's",
              "keras-hub#642, gluon-nlp#1214", parameter=_epsilon_parameter),
        Fault("scale-missing", frozenset({"scores"}), _scale_missing, "the scores are not divided by √d, or by another number",
              "mlc-llm#3426, flexflow#467", parameter=_scale_parameter),
        Fault("mask-ignored", frozenset({"probs"}), _mask_ignored, "padded keys are attended to", "candle#1552"),
        Fault("residual-missing", norms, _residual_missing, "the residual is not added", "constructed"),
        Fault("head-order", frozenset({"context"}), _head_order,
              "heads are merged without transposing head and position", "constructed"),
        Fault("token-types-ignored", frozenset({"token_type_lookup"}), _token_types_ignored,
              "token types are taken as all zeros", "optimum#2062"),
        Fault("positions-shifted", frozenset({"position_lookup"}), _positions_shifted,
              "positions start at padding id + 1", "ANEForge#257, sentence-transformers#3879"),
        Fault("bias-missing", linears, _bias_missing, "the bias is not added", "vllm#46835"),
        Fault("norm-variance", norms, _unbiased_variance, "the norm divides by n − 1 where it should by n", "constructed"),
        Fault("query-key-swapped", frozenset({"linear"}), _other_projection,
              "query and key parameters are swapped", "jsbaan/transformer-from-scratch#1"),
        Fault("pooler-token", frozenset({"first_token_linear"}), _last_token,
              "the pooler reads the last token, not the first", "constructed"),
    )  # fmt: skip


CATALOGUE: tuple[Fault, ...] = _catalogue()
BY_NAME: Mapping[str, Fault] = {fault.name: fault for fault in CATALOGUE}

__all__ = ["BY_NAME", "CATALOGUE", "Fault", "Parameter"]
