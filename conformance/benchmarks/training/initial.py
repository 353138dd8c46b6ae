"""Initializations of `making-bert`: unusual ones that are correct, and mistakes."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from conformance import Architecture, TorchImplementation
from conformance.implementations.initialization import initialized
from conformance.implementations.making_bert import build, making_bert

Draw = Callable[[Tensor, float], object]

DENSE = "bert.encoder.layer.0.intermediate.dense"
QUERY, KEY = (f"bert.encoder.layer.0.attention.self.{part}.weight" for part in ("query", "key"))
WORDS = "bert.embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class Start:
    """An initialization.

    Attributes:
        untrained: returns the module from which training starts.
        at: name of a wrong parameter; empty if the initialization is correct.
        named: part of the message on this parameter.
    """

    untrained: Callable[[Architecture], nn.Module]
    at: str = ""
    named: str = ""

    @property
    def candidate(self) -> TorchImplementation:
        """The candidate `making-bert` with this initialization."""
        return replace(making_bert, untrained=self.untrained, name="started")


def _drawn(draw: Draw) -> Callable[[Architecture], nn.Module]:
    """Return an initialization with all matrices and tables drawn by `draw(parameter, range)`."""

    def untrained(a: Architecture) -> nn.Module:
        module = initialized(build(a), a.initializer_range)
        for parameter in module.parameters():
            if parameter.ndim > 1:
                draw(parameter.data, a.initializer_range)
        return module

    return untrained


def _altered(alter: Callable[[Any, float], object]) -> Callable[[Architecture], nn.Module]:
    """Return BERT's initialization, altered by `alter(module, range)`."""

    def untrained(a: Architecture) -> nn.Module:
        module = build(a)
        initialized(module, a.initializer_range)
        with torch.no_grad():
            alter(module, a.initializer_range)
        return module

    return untrained


def _by_numpy(x: Tensor, r: float) -> None:
    values = np.random.default_rng(int(torch.randint(2**31, ()))).normal(0.0, r, x.shape)
    x.copy_(torch.from_numpy(values))


def _truncated(x: Tensor, r: float, cut: float = 2.0) -> None:
    nn.init.trunc_normal_(x, std=r, a=-cut * r, b=cut * r)


def _without_padding(module: Any, r: float) -> None:
    module.embedding.token_embedding.weight[0] = 0.0


def _in_format(x: Tensor, r: float) -> None:
    x.copy_(torch.empty_like(x, dtype=torch.bfloat16).normal_(0.0, r))


CORRECT: Mapping[str, Start] = {
    "not truncated": Start(_drawn(lambda x, r: x.normal_(0.0, r))),
    "truncated at two deviations, as in Google's code": Start(_drawn(_truncated)),
    "truncated and widened, as Flax does": Start(_drawn(lambda x, r: _truncated(x, r / 0.87962566103423978))),
    "cut so far out that nothing is": Start(_drawn(lambda x, r: nn.init.trunc_normal_(x, std=r))),
    "a padding row of 0": Start(_altered(_without_padding)),
    "by NumPy": Start(_drawn(_by_numpy)),
    "in bfloat16": Start(_drawn(_in_format)),
}


def _like_one_layer(module: Any, r: float) -> None:
    first = deepcopy(module.transformer[0].state_dict())
    for layer in module.transformer:
        layer.load_state_dict(first)


def _norms_drawn(module: Any, r: float) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.weight.normal_(0.0, r)


def _biases_drawn(module: Any, r: float) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.bias.uniform_(-(layer.in_features**-0.5), layer.in_features**-0.5)


def _key_is_query(module: Any, r: float) -> None:
    attention = module.transformer[0].attention.attention
    attention.project_key.weight.copy_(attention.project_query.weight)


def _scaled_as_gpt2(module: Any, r: float) -> None:
    for layer in module.transformer:
        layer.residual.mlp2.weight.div_((2.0 * len(module.transformer)) ** 0.5)


def _row_of_another_padding(module: Any, r: float) -> None:
    module.embedding.token_embedding.weight[1] = 0.0


WRONG: Mapping[str, Start] = {
    "torch's defaults": Start(build, f"{DENSE}.weight", "torch's default of nn.Linear"),
    "torch's default of the tables": Start(
        _altered(lambda m, r: m.embedding.token_embedding.weight.normal_()), WORDS, "torch's default of nn.Embedding"
    ),
    "a range of 0.02, whatever the config says": Start(
        lambda a: initialized(build(a), 0.02), f"{DENSE}.weight", "the config's initializer_range is ignored"
    ),
    "truncated, at a range of 0.02": Start(
        _drawn(lambda x, r: _truncated(x, 0.02)), f"{DENSE}.weight", "initializer_range is ignored"
    ),
    "the range as a variance": Start(_drawn(lambda x, r: x.normal_(0.0, r**0.5)), f"{DENSE}.weight", "taken for the variance"),
    "the range squared": Start(_drawn(lambda x, r: x.normal_(0.0, r**2)), f"{DENSE}.weight", "initializer_range is squared"),
    "Glorot's": Start(_drawn(lambda x, r: nn.init.xavier_uniform_(x)), f"{DENSE}.weight", "Glorot's, uniform"),
    "He's": Start(_drawn(lambda x, r: nn.init.kaiming_normal_(x)), f"{DENSE}.weight", "He's, normal"),
    "uniform, of the same variance": Start(_drawn(lambda x, r: x.uniform_(-(3.0**0.5) * r, 3.0**0.5 * r)), WORDS, "but uniform"),
    "about another mean": Start(_drawn(lambda x, r: x.normal_(r, r)), f"{DENSE}.weight", "mean 0.0499"),
    "nothing drawn": Start(_drawn(lambda x, r: x.zero_()), f"{DENSE}.weight", "0 everywhere"),
    "one row, repeated": Start(_drawn(lambda x, r: x.copy_(x[:1].clone())), f"{DENSE}.weight", "row 1 is row 0"),
    "layers that are copies": Start(_altered(_like_one_layer), DENSE.replace("0", "1") + ".weight", f"a copy of {DENSE}.weight"),
    "keys that are queries": Start(
        _altered(_key_is_query),
        "bert.encoder.layer.0.attention.self.key.weight",
        "a copy of bert.encoder.layer.0.attention.self.query",
    ),
    "scaled as in GPT-2": Start(_altered(_scaled_as_gpt2), "bert.encoder.layer.0.output.dense.weight", "as in GPT-2"),
    "another row of padding": Start(_altered(_row_of_another_padding), WORDS, "row 1 is 0"),
    "norms drawn": Start(_altered(_norms_drawn), "bert.embeddings.LayerNorm.weight", "expected 1 everywhere"),
    "biases drawn": Start(_altered(_biases_drawn), f"{DENSE}.bias", "expected 0 everywhere"),
}
