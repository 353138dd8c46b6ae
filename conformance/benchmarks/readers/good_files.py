"""Every reader of the project, with valid files for it."""

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import chdir, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import BertWordPieceTokenizer

from conformance.benchmarks.readers.formats import FORMATS, OutputFormat
from conformance.candidates import recorded_trace as recorded_form
from conformance.checks import known_failures, trace
from conformance.checks.check import Plan, Request
from conformance.checks.judgement import check_values
from conformance.checks.run_header import header_of
from conformance.diagnosis import outputs, outputs_file
from conformance.errors import CandidateError
from conformance.goldens.custom_golden import golden_of, read_batches
from conformance.goldens.golden import load_golden
from conformance.goldens.make import keep
from conformance.goldens.manifest import manifest, of_entry
from conformance.isolation.candidate_work import Activations, Head
from conformance.isolation.link import Link, encoded
from conformance.model.activations import parameter_shapes
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.checkpoint import content_digest
from conformance.model.directory import load_directory
from conformance.model.files import read_safetensors, reading
from conformance.model.tokenizer import tokenized
from conformance.results.file import Writer, read_results
from conformance.results.to_records import footer, records_of

SMALL = Architecture(
    vocab_size=12, hidden_size=4, num_hidden_layers=1, num_attention_heads=2, intermediate_size=6, max_position_embeddings=8
)
BATCH = Batch.of({"input_ids": [[1, 2, 3, 0]], "token_type_ids": [[0, 0, 1, 0]], "attention_mask": [[1, 1, 1, 0]]})
KNOWN = """
[[known-failure]]
check = "values"
reason = "the norm's epsilon is 1e-5 until the next release"
activation = "encoder.layer.*.LayerNorm"
fault = "epsilon"
implementation = "hf-*"

[[known-failure]]
check = "*"
reason = "é"
"""


@dataclass(frozen=True)
class Reader:
    """A reader with the files that it reads.

    Attributes:
        read: reads a folder.
        damaged: name of the file that is damaged.
        files: the valid files, by name.
    """

    read: Callable[[Path], object]
    damaged: str
    files: Mapping[str, bytes]

    def write(self, folder: Path, content: bytes | None = None) -> None:
        """Write the files to a folder; `content`, if given, replaces the damaged one."""
        for name, data in self.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data if content is None or name != self.damaged else content)


def readers(folder: Path) -> dict[str, Reader]:
    """Return every reader, by name; valid files are created in `folder`."""
    checkpoint, mine = _checkpoint(folder / "checkpoint"), _golden(folder / "mine", folder / "checkpoint")
    sentences, hidden = (
        _sentences(folder / "sentences", checkpoint),
        np.random.default_rng(0).normal(size=(1, 4, 4)).astype(np.float32),
    )
    tensors = {"last_hidden_state": hidden, "last_hidden_state/positions": np.arange(4)}
    golden = golden_of("small", load_directory(folder / "checkpoint"), {"one": BATCH})

    def alone(name: str, read: Callable[[Path], object], content: str | Callable[[Path], object]) -> Reader:
        """Return the reader of a single file with this text, or with what a function writes to it."""
        file = folder / name
        content(file) if callable(content) else file.write_text(content, "utf-8")
        return Reader(lambda there: read(there / name), name, {name: file.read_bytes()})

    return {
        "checkpoint: config.json": Reader(_read_checkpoint, "config.json", checkpoint),
        "checkpoint: model.safetensors": Reader(_read_checkpoint, "model.safetensors", checkpoint),
        **{f"sentences: {name}": Reader(_read_checkpoint, name, sentences) for name in (*_SETTINGS, "2_Dense/model.safetensors")},
        "tokenizer: tokenizer.json": alone("tokenizer.json", _read_tokenizer, _WORD_PIECES.to_str()),
        "tokenizer: vocab.txt": alone("vocab.txt", _read_tokenizer, "\n".join(_WORDS)),
        "outputs: JSON": alone("outputs.json", _read_outputs, _json_outputs(hidden)),
        "outputs: text": alone("outputs.txt", _read_outputs, f"last_hidden_state = {hidden!r}"),
        "outputs: npy": alone("outputs.npy", _read_outputs, lambda file: np.save(file, hidden)),
        "outputs: npz": alone(
            "outputs.npz", _read_outputs, lambda file: np.savez(file, last_hidden_state=hidden, input_ids=BATCH.input_ids)
        ),
        "outputs: safetensors": alone("outputs.safetensors", _read_outputs, lambda file: save_file(tensors, file)),
        **{f"form: {form.source}": alone(f"out{form.suffix}", _read_outputs, partial(_write_form, form)) for form in FORMATS},
        "golden: manifest": Reader(_read_golden, "manifest.json", mine),
        "golden: arrays": Reader(_read_golden, "mine.safetensors", mine),
        "trace": alone("trace.safetensors", recorded_form.read, lambda file: trace.save(trace.true_trace(golden), file)),
        "a candidate's reply": alone("reply", _read_reply, lambda file: file.write_bytes(_reply(hidden))),
        "known failures": alone("known.toml", known_failures.read, KNOWN),
        "results": alone("results.jsonl", read_results, _write_results),
        "batch: JSON": alone("batch.json", read_batches, json.dumps({name: x.tolist() for name, x in BATCH.arrays().items()})),
        "batch: safetensors": alone("batch.safetensors", read_batches, lambda file: save_file(BATCH.arrays(), file)),
    }


def _of_folder(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _checkpoint(folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**SMALL.as_dict(), "model_type": "bert"}))
    draw = np.random.default_rng(1)
    save_file({n: draw.normal(size=s).astype(np.float32) for n, s in parameter_shapes(SMALL).items()}, folder / "model.safetensors")
    return _of_folder(folder)


def _read_checkpoint(folder: Path) -> object:
    return load_directory(folder).digest


_SETTINGS = {
    "modules.json": [{"type": f"x.{path[2:]}", "path": path} for path in ("0_Transformer", "1_Pooling", "2_Dense", "3_Normalize")],
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 4},
    "2_Dense/config.json": {"out_features": 3, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"},
    "3_Normalize/config.json": {"module_input_name": "sentence_embedding"},
}


def _sentences(folder: Path, checkpoint: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a sentence-transformers directory."""
    folder.mkdir()
    save_file({"linear.weight": np.ones((3, 4), np.float32), "linear.bias": np.ones(3, np.float32)}, folder / "dense")
    settings = {name: json.dumps(value).encode() for name, value in _SETTINGS.items()}
    network = {f"0_Transformer/{name}": data for name, data in checkpoint.items()}
    return {**settings, **network, "2_Dense/model.safetensors": (folder / "dense").read_bytes()}


def _golden(folder: Path, checkpoint: Path) -> dict[str, bytes]:
    small = golden_of("small", load_directory(checkpoint), {"one": BATCH})
    keep(replace(small, origin=f"checkpoint:{checkpoint}", folder=checkpoint), folder)
    return _of_folder(folder)


def _read_golden(folder: Path) -> object:
    """Load a golden, correcting its digests if its form is valid, so that the checks behind the digests are reached."""
    file = folder / "manifest.json"
    with suppress(Exception):  # An error in this preparation is reported by the reader.
        tree = json.loads(file.read_text())
        for name, e in manifest(folder).items():
            stored = content_digest(read_safetensors(folder / f"{name}.safetensors")[0])
            digest = of_entry(e.version, e.architecture, e.batches, e.weights_digest, stored)
            tree["goldens"][name] |= {"stored_digest": stored, "digest": digest}
        file.write_text(json.dumps(tree))
    return load_golden(folder)


_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "##c")
_WORD_PIECES = BertWordPieceTokenizer({word: i for i, word in enumerate(_WORDS)})
_IMPORTS = "import numpy, safetensors.numpy"


def _read_tokenizer(file: Path) -> object:
    return tokenized(file.parent, [("a bc", None), ("b", "a")])


def _json_outputs(hidden: np.ndarray) -> str:
    table = {"values": hidden.tolist(), "positions": [0, 1, 2, 3]}
    return json.dumps({"last_hidden_state": table, "text": ["a b"], "input_ids": BATCH.input_ids.tolist()})


def _read_outputs(file: Path) -> object:
    return outputs.resolved(outputs_file.read(file).tables, SMALL, BATCH)


def _write_form(form: OutputFormat, file: Path) -> None:
    """Write one of the forms that `diagnose --help` shows."""
    if form.is_code:
        with chdir(file.parent):
            exec(f"{_IMPORTS}\n{form.example}", {"x": np.array([[0.125, -0.5, 0.75, 0.25]])})
    else:
        file.write_text(form.example, "utf-8")


def _reply(hidden: np.ndarray) -> bytes:
    head = Head("encoder.layer.0.output.LayerNorm", str(hidden.dtype), hidden.shape, values=hidden)
    return b"".join(encoded(reply=1, result=Activations((head,))))


def _read_reply(file: Path) -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs, reading(file, "a reply", CandidateError):
        ours.sendall(file.read_bytes())
        ours.shutdown(socket.SHUT_WR)
        received = Link(theirs).receive()
        return received.content(received.message.result, Activations)


def _write_results(file: Path) -> None:
    """Write the results of one check, with three of its activations."""
    records = records_of(check_values(Request.of("hf-eager", "tiny")))
    with Writer(file) as writer:
        writer.write(header_of("cpu", {"tiny": None}, Plan(), cases=1))
        for activation in records.activations[:3]:
            writer.write(activation)
        writer.write(records.check)
        writer.write(footer([records.check]))
