"""BERT's initialization, for modules whose own is torch's: matrices and tables N(0, std²), biases 0; norms are so already."""

from torch import nn


def initialized(module: nn.Module, std: float) -> nn.Module:
    """The module, its parameters drawn from torch's random numbers, as training starts from them (Devlin et al. 2019's code)."""
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return module
