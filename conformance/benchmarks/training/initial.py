"""Initializations of `making-bert`: unusual ones that are correct, and mistakes, as expressions of single parameters."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from conformance import Architecture, TorchImplementation
from conformance.benchmarks.detection.tools import evaluated
from conformance.implementations.initialization import initialized
from conformance.implementations.making_bert import build, making_bert

DENSE = "bert.encoder.layer.0.intermediate.dense"
_WORDS, _TABLE = "bert.embeddings.word_embeddings.weight", r"embedding\.token_embedding\.weight"
_MATRICES = ""


@dataclass(frozen=True)
class Start:
    """An initialization.

    Attributes:
        expression: draws or changes a parameter `x` in place, after all have been initialized as BERT's are; it may refer to the
            `initializer_range` r, to the other `parameters`, to the parameter's `name`, to the number of layers L and to the width
            H. None: torch's defaults are left.
        parameters: the parameters that it changes, as a regular expression of their names; all matrices and tables if it is empty.
        at: name of a wrong parameter; empty if the initialization is correct.
        named: part of the message on this parameter.
    """

    expression: str | None
    parameters: str = _MATRICES
    at: str = ""
    named: str = ""

    @property
    def candidate(self) -> TorchImplementation:
        """The candidate `making-bert` with this initialization."""
        return replace(making_bert, untrained=self.untrained, name="started")

    def untrained(self, a: Architecture) -> nn.Module:
        """Return the module from which training starts."""
        module = build(a)
        if self.expression is None:
            return module
        parameters = dict(initialized(module, a.initializer_range).named_parameters())
        shared = {"r": a.initializer_range, "L": a.num_hidden_layers, "H": a.hidden_size, "parameters": parameters}
        shared |= {"init": nn.init, "truncated": truncated, "by_numpy": by_numpy}
        with torch.no_grad():
            for name, x in parameters.items():
                if re.fullmatch(self.parameters, name) if self.parameters else x.ndim > 1:
                    evaluated(self.expression, {**shared, "name": name, "x": x}.__getitem__)
        return module


def truncated(x: Tensor, std: float) -> Tensor:
    """Draw from a normal distribution, cut at two deviations."""
    return nn.init.trunc_normal_(x, std=std, a=-2.0 * std, b=2.0 * std)


def by_numpy(x: Tensor, std: float) -> Tensor:
    """Draw by NumPy, from a seed that torch draws."""
    values = np.random.default_rng(int(torch.randint(2**31, ()))).normal(0.0, std, x.shape)
    return x.copy_(torch.from_numpy(values))


CORRECT: Mapping[str, Start] = {
    "not truncated": Start("x.normal_(0, r)"),
    "truncated at two deviations, as in Google's code": Start("truncated(x, r)"),
    "truncated and widened, as Flax does": Start("truncated(x, r / 0.87962566103423978)"),
    "cut so far out that nothing is": Start("init.trunc_normal_(x, std=r)"),
    "a padding row of 0": Start("x[0].zero_()", _TABLE),
    "by NumPy": Start("by_numpy(x, r)"),
    "in bfloat16": Start("x.copy_(torch.empty_like(x, dtype=bfloat16).normal_(0, r))"),
}


def _matrices(expression: str | None, named: str, at: str = f"{DENSE}.weight") -> Start:
    return Start(expression, _MATRICES, at, named)


_KEY, _QUERY = (f"transformer.0.attention.attention.project_{name}.weight" for name in ("key", "query"))
WRONG: Mapping[str, Start] = {
    "torch's defaults": _matrices(None, "torch's default of nn.Linear"),
    "torch's default of the tables": Start("x.normal_()", _TABLE, _WORDS, "torch's default of nn.Embedding"),
    "a range of 0.02, whatever the config says": _matrices("x.normal_(0, 0.02)", "the config's initializer_range is ignored"),
    "truncated, at a range of 0.02": _matrices("truncated(x, 0.02)", "initializer_range is ignored"),
    "the range as a variance": _matrices("x.normal_(0, r**0.5)", "standard deviation 0.22"),
    "the range squared": _matrices("x.normal_(0, r**2)", "standard deviation 0.002"),
    "Glorot's": _matrices("init.xavier_uniform_(x)", "standard deviation 0.14"),
    "He's": _matrices("init.kaiming_normal_(x)", "standard deviation 0.2"),
    "uniform, of the same variance": _matrices("x.uniform_(-(3**0.5) * r, 3**0.5 * r)", "kurtosis 1.", _WORDS),
    "about another mean": _matrices("x.normal_(r, r)", "mean 0.0499"),
    "nothing drawn": _matrices("x.zero_()", "0 everywhere"),
    "one row, repeated": _matrices("x.copy_(x[:1].clone())", "row 1 is row 0"),
    "layers that are copies": Start(
        "x.copy_(parameters[name.replace('transformer.1', 'transformer.0')])",
        r"transformer\.1\..*",
        f"{DENSE.replace('0', '1')}.weight",
        f"a copy of {DENSE}.weight",
    ),
    "keys that are queries": Start(
        f"x.copy_(parameters['{_QUERY}'])",
        re.escape(_KEY),
        "bert.encoder.layer.0.attention.self.key.weight",
        "a copy of bert.encoder.layer.0.attention.self.query",
    ),
    "scaled as in GPT-2": Start(
        "x.div_((2 * L) ** 0.5)", r".*mlp2\.weight", "bert.encoder.layer.0.output.dense.weight", "standard deviation 0.02"
    ),
    "another row of padding": Start("x[1].zero_()", _TABLE, _WORDS, "row 1 is 0"),
    "norms drawn": Start("x.normal_(0, r)", r".*layer_norm\.weight", "bert.embeddings.LayerNorm.weight", "expected 1 everywhere"),
    "biases drawn": Start(
        "x.uniform_(-(H**-0.5), H**-0.5)", r".*(project_\w+|mlp\d?|unembedding)\.bias", f"{DENSE}.bias", "expected 0 everywhere"
    ),
}
