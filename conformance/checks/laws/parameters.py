"""What a module holds: every tensor registered, all of it in the state dict, and tied what BERT ties.

The masked-LM decoder is the word embedding (Devlin et al. 2019; `tie_word_embeddings` in Hugging Face's config): one tensor in two
places, so that training moves both. Two equal tensors give the same output until then.
"""

import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from conformance.checks.laws.law import Law, run_of
from conformance.checks.laws.surroundings import require_module
from conformance.checks.search.agreement import RowPairs, require_identity
from conformance.checks.search.identity_key import IdentityKey
from conformance.checks.search.subject import Subject
from conformance.errors import Unsupported
from conformance.model.checkpoint import Checkpoint, read_only
from conformance.results.example import Example
from conformance.results.law_broken import LawBroken
from conformance.results.termination import call_candidate


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from (t for part in value.values() for t in _tensors(part))
    elif isinstance(value, list | tuple):
        yield from (t for part in value for t in _tensors(part))


def _all_are_registered(subject: Subject, example: Example) -> float:
    """Every tensor held by a module, in a list or mapping too, is a parameter or a buffer, or shares its storage with one.

    Any other tensor is not saved, and is not moved with the module.
    """
    module = subject.afresh().module  # what a call keeps, its last probabilities say, is no part of it
    registered = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    found = [
        f"{path}.{name}".strip(".")
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in ("_parameters", "_buffers", "_modules")
        and any(t.untyped_storage().data_ptr() not in registered for t in _tensors(value))
    ]
    if found:
        rendered = f"{', '.join(found)}: neither parameter nor buffer, so not in the state dict, and left behind by `to`"
        rendered = f"{rendered}; register_buffer() makes it one (persistent=False where it can be computed again)"
        held = "vars(runner.module.get_submodule(name.rpartition('.')[0]))"
        raise LawBroken(rendered, claim=f"not any(name.rpartition('.')[2] in {held} for name in {found!r})")
    return 0.0


registered_tensors = Law(_all_are_registered, applies=require_module, once=True, in_its_process=True)


def _round_trips(subject: Subject, example: Example) -> float:
    """Weights saved by safetensors and loaded into the same candidate of other weights make it the first one, bit for bit."""
    from safetensors.torch import load_model, save_model

    odd = [name for name, value in subject.module.state_dict().items() if not hasattr(value, "dtype")]
    if odd:
        raise Unsupported(f"its state dict holds what is no tensor, and safetensors has none of it: {', '.join(odd)}")
    other = subject.afresh(_of_other_weights(IdentityKey(subject.checkpoint)))
    first = run_of(subject, example.batch)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        call_candidate(lambda: save_model(subject.module, str(file)))
        call_candidate(lambda: load_model(other.module, str(file), strict=True, device=subject.device))
    try:
        return require_identity(
            subject, first, run_of(other, example.batch), RowPairs(range(first.batch.size), range(first.batch.size))
        )
    except LawBroken as broken:
        rendered = f"with its state dict loaded into another of its kind, {broken}: something that it computes with is not in there"
        raise LawBroken(rendered, broken.runs[:1]) from broken


@lru_cache(maxsize=1)
def _of_other_weights(checkpoint: IdentityKey[Checkpoint]) -> Checkpoint:
    """The same architecture, every parameter another."""
    weights = checkpoint.value.weights.items()
    return Checkpoint(checkpoint.value.architecture, read_only({name: np.array(0.5 * w + 0.25) for name, w in weights}))


state_round_trip = Law(_round_trips, applies=require_module, affords=0.25, in_its_process=True)  # each is prepared anew

_TIED = "bert.embeddings.word_embeddings.weight"


def _require_tied_head(subject: Subject) -> None:
    require_module(subject)
    if not _copies(subject):
        raise Unsupported("it holds the word embeddings once, and nothing is there to be tied")


def _copies(subject: Subject) -> dict[str, Any]:
    """Every parameter but the first that holds the word embeddings' values, as they are or transposed; with the first."""
    import torch

    words = torch.from_numpy(np.array(subject.weights[_TIED])).to(getattr(torch, subject.dtype))
    found = {}
    for name, parameter in subject.module.named_parameters(remove_duplicate=False):
        held = parameter.detach().cpu()
        if any(held.shape == w.shape and torch.equal(held, w) for w in (words, words.T)):
            found[name] = parameter
    return found if len(found) > 1 else {}


def _are_one(subject: Subject, example: Example) -> float:
    copies = _copies(subject)
    if len({p.untyped_storage().data_ptr() for p in copies.values()}) > 1:
        named = "dict(runner.module.named_parameters(remove_duplicate=False))"
        raise LawBroken(
            f"{' and '.join(copies)} are equal and not tied: training would part them; make them one Parameter",
            claim=f"len({{{named}[name].data_ptr() for name in {list(copies)!r}}}) == 1",
        )
    return 0.0


tied_weights = Law(_are_one, applies=_require_tied_head, once=True, in_its_process=True)
