"""A runner that exposes its module, so that checks can inspect the module's weights, flags and state dict."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conformance.errors import Unsupported

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class ModuleRunner:
    """A runner together with the module that it runs.

    Attributes:
        module: the module that is run, not a copy of it.
        call: maps a batch to a mapping of activations by name, or to pairs of name and activation.
        gradients: maps a batch, the name of an activation and the gradient with respect to that activation to the activations and,
            under `NAME.grad`, the gradients, as `conformance.captured_with_gradients` yields them; None: there is no backward pass.
        evaluation_only: whether the module is not judged in training mode: it is not meant to be trained and has no dropout, or its
            dropout rates are fixed.
        trainer: maps a `conformance.Training` to a function that does one training step on a batch and returns what
            `conformance.captured_step` yields; None: there is no training loop.
        initial: yields the checkpoint's name and the value of each parameter before training, newly drawn from torch's random
            number generator for the prepared architecture; None: the values at the start of training are not available.

    Example:
        >>> runner = ModuleRunner(nn.Identity(), lambda batch: {"logits": batch})
        >>> runner(1.0)
        {'logits': 1.0}
    """

    module: "nn.Module"
    call: Callable[[Any], Any]
    gradients: Callable[[Any, str, Any], Any] | None = None
    evaluation_only: bool = False
    trainer: Callable[[Any], Callable[[Any], Any]] | None = None
    initial: Callable[[], Any] | None = None

    def __call__(self, batch: Any) -> Any:
        """Run the module on a batch."""
        return self.call(batch)

    def train(self, mode: bool = True) -> None:
        """Set training mode or eval mode, as `nn.Module.train`.

        Raises:
            Unsupported: training mode is requested, and the module is for evaluation only.
        """
        if mode and self.evaluation_only:
            raise Unsupported("`evaluation_only=True` in the adaptor (`map` writes it if the constructor takes no dropout rates)")
        self.module.train(mode)
