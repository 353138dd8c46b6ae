"""Client of protocol 1 of `bert-conformance run -i 'cmd:python3 THIS_FILE'`: copy it and write `prepare`."""

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

Tensors = Mapping[str, Any]
Run = Callable[[Tensors], Tensors]


class Unsupported(Exception):
    """What `prepare` raises, with the reason, for an architecture, device or dtype that it does not support."""


def serve(prepare: Callable[[Mapping[str, Any], Tensors, str, str], Run], features: tuple[str, ...] = ()) -> None:
    """Answer requests until standard input ends.

    Args:
        prepare: of architecture, weights by Hugging Face's names in float64, device and dtype: a function of a batch's arrays that
            returns activations by name, arrays of that dtype.
        features: what it can do beyond the encoder of the paper.
    """
    replies, sys.stdout = sys.stdout, sys.stderr  # what is printed elsewhere must not stand among the replies
    run: Run = dict
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any] = {"reply": request["request"]}
        try:
            match request["request"]:
                case "hello":
                    reply |= {"protocol": 1, "features": features}
                case "prepare":
                    run = prepare(request["architecture"], load_file(request["weights"]), request["device"], request["dtype"])
                case "run":
                    activations = run(load_file(request["inputs"]))
                    save_file({name: np.array(a, order="C") for name, a in activations.items()}, request["outputs"])
                case other:
                    raise ValueError(f"unknown request {other!r}")
        except Unsupported as why:
            reply["unsupported"] = str(why)
        except Exception:
            reply["error"] = traceback.format_exc()
        print(json.dumps(reply), file=replies, flush=True)
