"""Whether hooks change how a module is run, so that a pass in which activations are captured is not the one that users run.

A hook inside code under `torch.compile` ends the compiled graph there, and most of the module is then run eagerly; with
`fullgraph=True` it is an error. A pass with such a hook is therefore run eagerly as a whole. The fast path of
`nn.TransformerEncoder` is taken only without hooks. In both cases the activations that hooks show are correct or wrong by
themselves, and the outputs are judged again in passes without hooks.
"""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from conformance.candidates.torch_state import restored
from conformance.errors import CandidateError
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch

# Modules without an argument for the intermediate size use four times the hidden size (Devlin et al. 2019, section 3).
# B, S, h, d, L, P, V and the multiples of H in fused products (2 H, 3 H, 4 H) are all different.
SMALL = Architecture(
    vocab_size=53,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=17,
    num_labels=7,
    heads=("masked_lm", "next_sentence", "classification"),
)
"""An architecture with every usual component, for a pass that shows whether hooks change a module's outputs."""


def small_batch() -> Batch:
    """Return a batch for `SMALL` whose second row is padded at the right: fast paths remove such padding."""
    mask = np.ones((2, 11), np.int64)
    mask[1, 7:] = 0
    return Batch(np.arange(22, dtype=np.int64).reshape(2, 11), np.zeros_like(mask), mask)


def compiled_around(modules: Mapping[str, nn.Module], paths: Iterable[str]) -> bool:
    """Return whether a hook at one of the paths is inside a module under `torch.compile`; the modules are not run."""
    hooked = set(paths)
    return any(
        (path in hooked and _compiles_its_hooks(module)) or (_is_compiled(module) and _is_around(path, hooked))
        for path, module in modules.items()
    )


def fused_around(modules: Mapping[str, nn.Module], paths: Iterable[str]) -> bool:
    """Return whether a hook at one of the paths is inside a layer of `nn.TransformerEncoder`, whose fast path hooks disable.

    Whether that changes the outputs depends on the device: on CUDA, the fast path computes another GELU (pytorch#104061).
    """
    hooked = set(paths)
    return any(isinstance(module, nn.TransformerEncoderLayer) and _is_around(path, hooked) for path, module in modules.items())


def _is_around(path: str, hooked: Set[str]) -> bool:
    """Return whether a hooked module is inside the module at a path; the path of the whole is empty."""
    return any(not path or p.startswith(f"{path}.") for p in hooked - {path})


def _compiles_its_hooks(module: nn.Module) -> bool:
    """Return whether `module.compile()` was called, which compiles `__call__` together with the module's own hooks."""
    return getattr(module, "_compiled_call_impl", None) is not None


def _is_compiled(module: nn.Module) -> bool:
    """Return whether the module or its `forward` is under `torch.compile`; `_torchdynamo_orig_callable` marks what is."""
    forward = vars(module).get("forward", getattr(type(module), "forward", None))
    return _compiles_its_hooks(module) or hasattr(forward, "_torchdynamo_orig_callable")


@contextlib.contextmanager
def eager_if(condition: bool) -> Iterator[None]:
    """Run code under `torch.compile` eagerly inside this context if the condition holds."""
    if not condition or "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@dataclass(frozen=True, eq=False)
class SmallPass:
    """A forward pass of a small module, with or without hooks.

    Attributes:
        modules: every submodule by its paths.
        paths: paths of the hooked modules.
        called: runs the pass and returns outputs by name.
        hooks: the hooks.
    """

    modules: Mapping[str, nn.Module]
    paths: Sequence[str]
    called: Callable[[], Mapping[str, Any]]
    hooks: AbstractContextManager[None]

    def compiles_hooks(self) -> bool:
        """Return whether a hook is inside code under `torch.compile`, that of a module or of a function.

        A hook in a function's code is found by a pass, since the compiler runs hooks while it traces. A backend that it has not
        seen before makes it trace again, and the graphs are not used by later passes.
        """
        if compiled_around(self.modules, self.paths):
            return True
        if "torch._dynamo" not in sys.modules:
            self.called()  # may be the first to call torch.compile
        if "torch._dynamo" not in sys.modules:
            return False
        traced: list[bool] = []

        def note(*given: Any) -> None:
            if torch.compiler.is_compiling():
                traced.append(True)

        def as_it_is(graph: Any, inputs: Any) -> Any:
            return graph.forward

        with contextlib.ExitStack() as stack:
            for module in {id(module): module for module in map(self.modules.__getitem__, self.paths)}.values():
                for handle in (module.register_forward_pre_hook(note), module.register_forward_hook(note)):
                    stack.callback(handle.remove)
            stack.enter_context(torch.compiler.set_stance("default", force_backend=as_it_is))
            self.called()
        return bool(traced)

    def changes_outputs(self) -> bool:
        """Return whether hooks that are not inside compiled code may change the outputs.

        They may if a pass returns outputs by name that are not bitwise equal to those of a pass with hooks, or that depend on a
        fast path.
        """
        plain = self.called()
        with self.hooks:
            with_hooks = self.called()
        differ = any(not _equal(plain[name], with_hooks[name]) for name in plain.keys() & with_hooks.keys())
        return differ or (bool(plain) and fused_around(self.modules, self.paths))


def _equal(one: Any, other: Any) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def is_so(question: Callable[[], bool]) -> bool:
    """Return the answer to a question for which a candidate's code is run; False if that raises an exception.

    No gradients are recorded. Settings and the state of the random number generator are restored. An exception is reported later,
    when the candidate is prepared and called for its checkpoint.
    """
    try:
        with restored(), torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return question()
    except Exception:
        return False


def require_named(returned: Any) -> Any:
    """Return what `call` returns; raise `CandidateError` if that contains no outputs by name."""
    if not isinstance(returned, Mapping) or not returned:
        raise CandidateError(
            "without hooks, no output is exposed: `call` returns none by name. Hooks change how the module is run, as under "
            "torch.compile, so that it is also judged without them; return its outputs by name in `call`"
        )
    return returned
