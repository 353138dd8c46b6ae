"""The implementation that an adaptor defines, tried on a network of another number of layers than the one that was examined."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch

import conformance
from conformance.candidates.capture import at_once
from conformance.candidates.torch_implementation import TorchImplementation
from conformance.errors import CandidateError
from conformance.goldens.batches import SEED
from conformance.goldens.generated_weights import weights
from conformance.mapping import source
from conformance.mapping.forward_pass import batch_for
from conformance.mapping.proposal import Proposal
from conformance.mapping.signature import namespace
from conformance.mapping.taps import Located
from conformance.model.checkpoint import Checkpoint

_NUMBERED = re.compile(r'\[(?P<index>\d+)\]|\["(?P<before>[^"{}]*?)(?P<number>\d+)(?P<after>[^"\d{}]*)"\]')


def implementation_of(proposal: Proposal) -> TorchImplementation:
    """Return the implementation that the proposal's adaptor defines, made from the inspected objects."""
    names = {"torch": torch, **{n: getattr(conformance, n) for n in source.public_names(proposal)}}
    names |= namespace(proposal.objects)
    exec("\n".join(source.body(proposal)), names)
    made: TorchImplementation = names[source.variable(proposal)]
    return made


def at_another_depth(proposal: Proposal) -> Proposal:
    """Return the proposal as it holds on a network with one layer less: an output may be one of a list with an item a layer.

    The adaptor is run there with each way to select the outputs. A proposal for which all ways fail has the first error, unless it
    fails on the examined network as well.
    """
    a = proposal.architecture
    if a.num_hidden_layers < 2 or "num_hidden_layers" not in proposal.builder.given or not proposal.has_output:
        return proposal
    outputs = proposal.returned_outputs
    others = tuple(location for location in proposal.returns if location not in outputs)
    error = ""
    for activations in dict.fromkeys(
        (proposal.activations, tuple(_from_the_end(location, proposal) for location in proposal.activations))
    ):
        for chosen in product(*(_selections(location, proposal) for location in outputs)):
            tried = replace(proposal, activations=activations, returns=(*chosen, *others))
            found = _error_of(tried, a.num_hidden_layers - 1)
            if not found:
                return tried
            error = error or found
    if _error_of(proposal, a.num_hidden_layers):
        return proposal
    return replace(proposal, fails_elsewhere=f"on a network of {a.num_hidden_layers - 1} layers, the adaptor fails: {error}")


def _from_the_end(location: Located, proposal: Proposal) -> Located:
    """Return a location in the module's own result with its index counted from the end; any other unchanged."""
    if location.tap.path or location.tap.what != "output" or not proposal.items or not isinstance(location.tap.element, int):
        return location
    return replace(location, tap=replace(location.tap, element=location.tap.element - proposal.items))


def _selections(location: Located, proposal: Proposal) -> Sequence[Located]:
    """Return a returned output with each way to select it: as it is, or by the index of the last layer in place of a number."""
    return [
        location,
        *(replace(location, selector=text) for text in (_by_layer(location.selector, proposal) if proposal.last else ())),
    ]


def _by_layer(selector: str, proposal: Proposal) -> Iterator[str]:
    for match in reversed(list(_NUMBERED.finditer(selector))):
        shift = int(match["index"] or match["number"]) - (proposal.architecture.num_hidden_layers - 1)
        index = "last" if not shift else f"last {'+' if shift > 0 else '-'} {abs(shift)}"
        item = f"[{index}]" if match["index"] else f'[f"{match["before"]}{{{index}}}{match["after"]}"]'
        yield f"{selector[: match.start()]}{item}{selector[match.end() :]}"


def _error_of(proposal: Proposal, layers: int) -> str:
    """Return the first line of the error of the adaptor on a network of that number of layers; empty if it runs."""
    a = proposal.architecture.with_(num_hidden_layers=layers)
    try:
        with at_once():
            runner = implementation_of(proposal).prepare(Checkpoint(a, weights(SEED, a)), "cpu", "float32")
            for _ in runner(batch_for(a, padded_at_end=proposal.call.takes_lengths).on("cpu")):
                pass
    except (Exception, SystemExit) as error:
        text = str(error).strip().partition("\n")[0]
        return text if isinstance(error, CandidateError) else f"{type(error).__name__}: {text}"
    return ""
