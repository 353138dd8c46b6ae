"""BERT's initialization for modules initialized by torch: matrices and tables N(0, std²), biases 0; norms need no change."""

from collections.abc import Callable

from torch import nn

from conformance import Architecture


def initialized(module: nn.Module, std: float) -> nn.Module:
    """Return the module with parameters drawn by torch's generator, as in the code of Devlin et al. 2019 before training."""
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return module


def untrained(build: Callable[[Architecture], nn.Module]) -> Callable[[Architecture], nn.Module]:
    """Return the function that builds a module initialized as before training."""
    return lambda a: initialized(build(a), a.initializer_range)
