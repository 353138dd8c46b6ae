"""Client of protocol 2 of `bert-conformance run 'cmd:python3 THIS_FILE'`: copy it and write `prepare`."""

import json
import sys
import traceback
from typing import Any

import numpy as np
from safetensors.numpy import load, save


class Unsupported(Exception):
    """The exception that `prepare` raises, with the reason, for an architecture, device or dtype that it does not support."""


def serve(prepare: Any, features: tuple[str, ...] = (), gradients: bool = False) -> None:
    """Answer requests until standard input ends.

    `prepare` maps architecture, float64 weights by Hugging Face's names, device and dtype to a function that maps the arrays of a
    batch to activations by name, in that dtype. With `gradients`, the function is also called with `source`, the name of an
    activation, and the array `gradient` with respect to it, and also returns each gradient as `NAME.grad`.
    """
    requests, replies, sys.stdout = sys.stdin.buffer, sys.stdout.buffer, sys.stderr  # what is printed is no reply

    def receive() -> Any:
        message = json.loads(requests.readline() or sys.exit())
        return message, load(requests.read(message["bytes"])) if message["bytes"] else {}

    def send(array: Any = None, **message: Any) -> Any:
        content = b"" if array is None else save({"0": np.array(array, order="C")})
        replies.write(json.dumps({**message, "bytes": len(content)}).encode() + b"\n" + content)
        replies.flush()

    while True:
        message, arrays = receive()
        given, answer = message["arguments"], {"reply": message["request"]}
        try:
            if message["method"] == "load":
                answer["result"] = {"protocol": 2, "features": features}
            elif message["method"] == "prepare":
                weights = {name: send(parameter=name) or receive()[1]["0"] for name in given["parameters"]}
                run = prepare(given["architecture"], weights, given["device"], given["dtype"])
            elif message["method"] == "call" and given["seed"] is None and (gradients or not given["source"]):
                places = {**given["batch"], "gradient": given["gradient"]}
                batch = {name: arrays[str(place["array"])] for name, place in places.items() if place}
                found = list((run(batch, source=given["source"]) if given["source"] else run(batch)).items())
                about = [(name, str(value.dtype), value.shape) for name, value in found]
                heads = [{"number": i, "name": n, "dtype": d, "shape": s} for i, (n, d, s) in enumerate(about)]
            elif message["method"] == "next":
                answer["result"], heads = {"heads": heads}, []
            elif message["method"] == "read":
                answer |= {"result": {"array": 0}, "array": found[given["number"]][1]}
            else:
                raise Unsupported(f"the program does not answer {message['method']}")
        except Unsupported as why:
            answer["failure"] = {"kind": "NotApplicable", "text": str(why)}
        except Exception:
            answer["failure"] = {"kind": "CandidateCrash", "text": traceback.format_exc()}
        send(**answer)
