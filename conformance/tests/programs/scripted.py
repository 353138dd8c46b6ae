"""A program that uses only the standard library: it answers with the activations of a file, or misbehaves as its first argument
says."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

mode, answers = sys.argv[1:]
for line in sys.stdin:
    request = json.loads(line)
    kind, reply = request["request"], {"reply": request["request"]}
    if kind == "hello":
        reply["protocol"] = 2 if mode == "version" else 1
        reply["features"] = ["no-such"] if mode == "feature" else []
        reply["gradients"] = mode == "gradients"
    if kind == "prepare" and mode == "unsupported":
        reply["unsupported"] = "there is no such kernel"
    if kind == "run":
        if mode == "gradients" and (request.get("source") != "logits" or b'"gradient"' not in Path(request["inputs"]).read_bytes()):
            reply["error"] = "no gradient is given"
        if mode == "exit":
            sys.exit(3)
        if mode == "killed" or (mode == "killed at first" and not os.path.exists(f"{answers}.seen")):
            Path(f"{answers}.seen").touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        if mode == "hang":
            time.sleep(3600)
        if mode == "garbage":
            print("Loading weights: 100%")
        if mode == "binary":
            sys.stdout.buffer.write(b"\xff\xfe\n")
        if mode == "other":
            reply["reply"] = "prepare"
        if mode == "error":
            reply["error"] = "ValueError: of the program's own"
        if mode == "link":
            os.symlink(answers, request["outputs"])
        elif mode == "short":
            with open(answers, "rb") as whole, open(request["outputs"], "wb") as cut:
                cut.write(whole.read()[:-100])
        elif mode != "nothing":
            shutil.copy(answers, request["outputs"])
    print(json.dumps(reply), flush=True)
