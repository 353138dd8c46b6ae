"""A runner that says which module it runs, so that its weights, flags and state dict can be looked at."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conformance.errors import Unsupported

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class ModuleRunner:
    """A module, and what running it on a batch yields.

    Attributes:
        module: the very one that runs, not a copy.
        call: of a batch, activations by name or pairs of them.
        gradients: of a batch, the name of an activation and the gradient with respect to it, the same and `NAME.grad` for each
            gradient, as `conformance.captured_with_gradients` yields them; None: there is no backward pass.
        trainer: of a `conformance.Training`, a function that does a step of training on a batch and gives what
            `conformance.captured_step` yields of it; None: it has no training loop.
        initial: yields the checkpoint's name and the value of each parameter before training, drawn anew from torch's random
            numbers for the architecture that was prepared; None: it does not say what training starts from.
        evaluation_only: whether it is not meant to be trained, and so has no dropout.

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
        """Run it."""
        return self.call(batch)

    def train(self, mode: bool = True) -> None:
        """Training mode or eval mode, as `nn.Module.train`; raises `Unsupported` where it is for evaluation only."""
        if mode and self.evaluation_only:
            raise Unsupported("it is declared to be for evaluation only")
        self.module.train(mode)
