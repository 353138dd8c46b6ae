"""A runner that says which module it runs, so that its weights, flags and state dict can be looked at."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class ModuleRunner:
    """A module, and what running it on a batch yields.

    Attributes:
        module: the very one that runs, not a copy.
        call: of a batch, activations by name or pairs of them.

    Example:
        >>> runner = ModuleRunner(nn.Identity(), lambda batch: {"logits": batch})
        >>> runner(1.0)
        {'logits': 1.0}
    """

    module: "nn.Module"
    call: Callable[[Any], Any]

    def __call__(self, batch: Any) -> Any:
        """Run it."""
        return self.call(batch)
