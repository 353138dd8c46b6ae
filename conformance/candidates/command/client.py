"""Client of protocol 1 of `bert-conformance run 'cmd:python3 THIS_FILE'`: copy it and write `prepare`."""

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

Tensors = Mapping[str, Any]
Run = Callable[..., Tensors]


class Unsupported(Exception):
    """The exception that `prepare` raises, with the reason, for an architecture, device or dtype that it does not support."""


def serve(
    prepare: Callable[[Mapping[str, Any], Tensors, str, str], Run], features: tuple[str, ...] = (), gradients: bool = False
) -> None:
    """Answer requests until standard input ends.

    Args:
        prepare: maps architecture, float64 weights by Hugging Face's names, device and dtype to a function that maps the arrays of
            a batch to activations by name, in that dtype.
        features: features supported beyond the encoder of the paper.
        gradients: whether there is a backward pass. For a backward pass, the function of the arrays is also called with `source`,
            the name of an activation; the array `gradient` is the gradient with respect to this activation, and the function also
            returns each gradient as `NAME.grad`.
    """
    replies, sys.stdout = sys.stdout, sys.stderr  # other code's prints must not appear among the replies
    run: Run = dict
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any] = {"reply": request["request"]}
        try:
            match request["request"]:
                case "hello":
                    reply |= {"protocol": 1, "features": features, "gradients": gradients}
                case "prepare":
                    run = prepare(request["architecture"], load_file(request["weights"]), request["device"], request["dtype"])
                case "run":
                    backward = {"source": request["source"]} if "source" in request else {}
                    found = run(load_file(request["inputs"]), **backward)
                    save_file({name: np.array(a, order="C") for name, a in found.items()}, request["outputs"])
                case other:
                    raise ValueError(f"unknown request {other!r}")
        except Unsupported as why:
            reply["unsupported"] = str(why)
        except Exception:
            reply["error"] = traceback.format_exc()
        print(json.dumps(reply), file=replies, flush=True)
