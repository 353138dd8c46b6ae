"""Laws on the tensors of a module: all are registered, the state dict is complete, and tied weights are one tensor."""

import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np

from conformance.candidates.arrays import described
from conformance.checks.laws.calls import AFRESH, module_of, require_module
from conformance.checks.laws.law import Law, run_of
from conformance.checks.search.agreement import RowPairs, require_identity
from conformance.checks.search.subject import Subject
from conformance.errors import Unsupported
from conformance.model.checkpoint import Checkpoint, read_only
from conformance.numerics.memo import IdentityKey
from conformance.results.example import Example, LawBroken


@Law.of(
    "registered-tensors",
    proves="every tensor that the module holds is a parameter or a buffer",
    catches="a table of positions that is not moved with the module",
    remedy="Register it: register_buffer(name, tensor), with persistent=False if it can be recomputed.",
    applies=require_module,
    once=True,
)
def registered_tensors(subject: Subject, example: Example) -> float:
    """Every tensor of a module, also in lists and mappings, is a parameter or buffer or shares storage with one.

    Any other tensor is not saved and is not moved with the module. Tensors that a call keeps, such as its last probabilities, are
    allowed: the module is looked at before its first call.
    """
    module = module_of(subject.afresh())
    registered = {held.storage for held in module.tensors.values()}
    found = [path for path, storages in module.attributes.items() if not registered.issuperset(storages)]
    if found:
        rendered = f"{', '.join(found)}: neither parameter nor buffer, so not in the state dict, and left behind by `to`"
        rendered = f"{rendered}; register_buffer() makes it one (persistent=False where it can be computed again)"
        held = "vars(runner.module.get_submodule(name.rpartition('.')[0]))"
        raise LawBroken(rendered, claim=f"not any(name.rpartition('.')[2] in {held} for name in {found!r})")
    return 0.0


@Law.of(
    "state-round-trip",
    proves="the state dict, saved and loaded with safetensors, gives another instance the same results, bit for bit",
    catches="weights that are stored a second time, fused or transposed, outside the state dict",
    remedy="Store each weight once, and compute fused or transposed copies after loading.",
    applies=require_module,
    affords=AFRESH,
)
def state_round_trip(subject: Subject, example: Example) -> float:
    """The state dict is loaded over an instance of other weights."""
    first = run_of(subject, example.batch)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        subject.surroundings.save(file)
        other = subject.afresh(_of_other_weights(IdentityKey(subject.checkpoint)))
        other.surroundings.load(file)
    try:
        return require_identity(
            subject, first, run_of(other, example.batch), RowPairs(range(first.batch.size), range(first.batch.size))
        )
    except LawBroken as broken:
        rendered = f"with its state dict loaded into another of its kind, {broken}: something that it computes with is not in there"
        raise LawBroken(rendered, broken.runs[:1]) from broken


@lru_cache(maxsize=1)
def _of_other_weights(checkpoint: IdentityKey[Checkpoint]) -> Checkpoint:
    """Return a checkpoint of the same architecture with different values of all parameters."""
    weights = checkpoint.value.weights.items()
    return Checkpoint(checkpoint.value.architecture, read_only({name: np.array(0.5 * w + 0.25) for name, w in weights}))


_TIED = "bert.embeddings.word_embeddings.weight"


def _require_tied_head(subject: Subject) -> None:
    if not _copies(subject):
        raise Unsupported("it has one copy of the word embeddings, so that there is nothing to tie")


def _copies(subject: Subject) -> dict[str, int]:
    """Return the addresses, by name, of all parameters equal to the word embeddings or their transpose, if there are several."""
    words, held = subject.weights[_TIED], module_of(subject).tensors
    fitting = [name for name, one in held.items() if one.learns and one.shape in (words.shape, words.T.shape)]
    values = ((name, described(value).read()) for name, value in subject.surroundings.tensors(fitting))
    found = {name: held[name].address for name, value in values if any(np.array_equal(value, w) for w in (words, words.T))}
    return found if len(found) > 1 else {}


@Law.of(
    "tied-weights",
    proves="if the module has the word embeddings in two places, both are one tensor",
    catches="a decoder weight that is a copy, and diverges from the embeddings in training",
    remedy="Tie them: decoder.weight = word_embeddings.weight, one Parameter.",
    applies=_require_tied_head,
    once=True,
)
def tied_weights(subject: Subject, example: Example) -> float:
    """The masked-LM decoder shares its weight with the word embedding (Devlin et al. 2019; `tie_word_embeddings` of Hugging Face).

    It is one tensor with two uses, so that training updates both. Two equal tensors give the same output until the first training
    step.
    """
    copies = _copies(subject)
    if len(set(copies.values())) > 1:
        named = "dict(runner.module.named_parameters(remove_duplicate=False))"
        raise LawBroken(
            f"{' and '.join(copies)} are equal and not tied: training would part them; make them one Parameter",
            claim=f"len({{{named}[name].data_ptr() for name in {list(copies)!r}}}) == 1",
        )
    return 0.0
