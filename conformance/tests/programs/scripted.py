"""A program that uses only the standard library: it answers with the activations of a file, or misbehaves as its first argument
says."""

import json
import os
import signal
import sys
import time
from pathlib import Path

NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
mode, answers = sys.argv[1:]
content = Path(answers).read_bytes()
start = 8 + int.from_bytes(content[:8], "little")
activations = json.loads(content[8:start])
activations.pop("__metadata__", None)
left: list[tuple[int, str]] = []


def save(about: dict[str, object], data: bytes) -> bytes:
    header = json.dumps({"0": {**about, "data_offsets": [0, len(data)]}}).encode()
    return len(header).to_bytes(8, "little") + header + data


for line in iter(sys.stdin.buffer.readline, b""):
    request = json.loads(line)
    inputs = sys.stdin.buffer.read(request["bytes"])
    reply, array = {"reply": request["request"]}, b""
    match request["method"]:
        case "load":
            reply["result"] = {"protocol": 3 if mode == "version" else 2, "features": ["no-such"] if mode == "feature" else []}
        case "prepare" if mode == "unsupported":
            reply["failure"] = {"kind": "NotApplicable", "text": "there is no such kernel"}
        case "call":
            left = list(enumerate(activations))
            if mode == "exit":
                sys.exit(3)
            if mode == "killed" or (mode == "killed at first" and not os.path.exists(f"{answers}.seen")):
                Path(f"{answers}.seen").touch()
                os.kill(os.getpid(), signal.SIGSEGV)
            if mode == "hang":
                time.sleep(3600)
            if mode == "garbage":
                print("Loading weights: 100%", flush=True)
            if mode == "binary":
                sys.stdout.buffer.write(b"\xff\xfe\n")
            if mode == "other":
                reply["reply"] += 1
            if mode == "error":
                reply["failure"] = {"kind": "CandidateCrash", "text": "ValueError: of the program's own"}
            if mode == "kind":
                reply["failure"] = {"kind": "CandidateNameError", "text": "which would be the caller's"}
            if mode == "twice":
                sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        case "next":
            heads = [
                {"number": i, "name": n, "dtype": NAMES[activations[n]["dtype"]], "shape": activations[n]["shape"]} for i, n in left
            ]
            if mode == "format":
                heads = [{**head, "dtype": "float32"} for head in heads]
            if mode == "endless names":
                heads = [{**head, "name": f"{head['name']} {request['request']}"} for head in heads]
            reply["result"], left = {"heads": heads}, left if mode.startswith("endless") else []
        case "read":
            about = list(activations.values())[request["arguments"]["number"]]
            begin, end = about["data_offsets"]
            reply["result"] = {"array": 0}
            array = save({"dtype": about["dtype"], "shape": about["shape"]}, content[start + begin : start + end])
            array = array[:-8] if mode == "short" else array
    sys.stdout.buffer.write(json.dumps({**reply, "bytes": len(array)}).encode() + b"\n" + array)
    sys.stdout.buffer.flush()
