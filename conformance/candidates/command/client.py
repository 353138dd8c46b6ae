"""Client of protocol 1 of `bert-conformance run -i 'cmd:python3 THIS_FILE'`: copy it and write `prepare`."""

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
    """What `prepare` raises, with the reason, for an architecture, device or dtype that it does not support."""


def serve(
    prepare: Callable[[Mapping[str, Any], Tensors, str, str], Run], features: tuple[str, ...] = (), gradients: bool = False
) -> None:
    """Answer requests until standard input ends.

    Args:
        prepare: of architecture, weights by Hugging Face's names in float64, device and dtype: a function of a batch's arrays that
            returns activations by name, arrays of that dtype.
        features: what it can do beyond the encoder of the paper.
        gradients: whether it has a backward pass. The function of the arrays is then called with `source` as well, the name of an
            activation, with respect to which the array `gradient` is given, and returns each gradient as `NAME.grad`, too.
    """
    replies, sys.stdout = sys.stdout, sys.stderr  # what is printed elsewhere must not stand among the replies
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
