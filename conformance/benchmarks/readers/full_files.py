"""Files at their readers' size limits, each filled with one kind of content, and the cost of reading them."""

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from conformance.benchmarks.readers.good_files import Reader
from conformance.benchmarks.resources import status_mib
from conformance.candidates.recorded_trace import TraceOrigin
from conformance.errors import ConformanceError
from conformance.model.files import ARRAYS, DOTS, JSON, OUTPUTS, PRINTED, SETTINGS, TEXT
from conformance.results.file import DIGEST, LARGEST, with_digest


@dataclass(frozen=True)
class FullFile:
    """A file filled with one kind of content, followed by zeros up to its size."""

    reader: str
    what: str
    content: bytes
    size: int


class Took(NamedTuple):
    """How a read ended, its CPU seconds, and the MiB of memory above those of the process before."""

    outcome: str
    seconds: float
    memory: float


def _filled(head: bytes, unit: bytes, tail: bytes, size: int) -> bytes:
    """Return as many units between head and tail as the size allows."""
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


def _numbered(pattern: bytes, count: int) -> bytes:
    return b"".join(pattern % i for i in range(count))


def full_files(chosen: Mapping[str, Reader]) -> Iterator[FullFile]:
    """Yield every full file of the chosen readers."""
    for reader, what, content in _FULL:
        if reader in chosen:
            full = content(chosen[reader].files[chosen[reader].damaged])
            yield FullFile(reader, what, full, len(full))
    for reader, name, dtype, size in _ZEROS:
        if reader in chosen:
            yield FullFile(reader, f"zeros in {dtype}", _header(name, dtype, size), size)


_OUTPUTS = b'{"input_ids": [[1, 2, 3, 0]], "last_hidden_state": ['
_CHECK = b'[[known-failure]]\ncheck="v"\nreason="r"\n'
_VALUES = PRINTED - 8  # The remaining values belong to the surrounding content.


def _tokenizer(good: bytes) -> bytes:
    tree = json.loads(good)
    entry = len('"12345678":1234567,')
    tree["model"]["vocab"] |= {f"{i:08}": i + len(tree["model"]["vocab"]) for i in range((TEXT - 2 * len(good)) // entry)}
    return json.dumps(tree, separators=(",", ":")).encode()


def _of_records(good: bytes) -> bytes:
    first, activation, *_, check, footer = good.splitlines(keepends=True)
    lines = _filled(first, activation, check + footer, LARGEST).splitlines()
    digest = sha256()
    return b"".join(with_digest(digest, line.rpartition(DIGEST)[0]) for line in lines)


_FULL: tuple[tuple[str, str, Callable[[bytes], bytes]], ...] = (
    ("checkpoint: config.json", "names", lambda good: b'{"a":0' + _numbered(b',"%07d":0', JSON // 12 - 1) + b"}"),
    ("tokenizer: tokenizer.json", "pieces", _tokenizer),
    ("tokenizer: vocab.txt", "pieces", lambda good: good + _numbered(b"\n%06x", TEXT // 7 - len(good))),
    ("tokenizer: vocab.txt", "line ends", lambda good: _filled(good, b"\n", b"", TEXT)),
    ("outputs: JSON", "numbers", lambda good: _OUTPUTS + b"0," * _VALUES + b"0]}"),
    ("outputs: JSON", "long numbers", lambda good: _OUTPUTS + b"0.12345678901," * _VALUES + b"0]}"),
    ("outputs: JSON", "lists", lambda good: _OUTPUTS + b"[]," * _VALUES + b"0]}"),
    ("outputs: JSON", "names", lambda good: b'{"a":0' + _numbered(b',"%07d":0', _VALUES) + b"}"),
    ("outputs: text", "numbers", lambda good: b"[" + b"0," * _VALUES + b"0]"),
    ("outputs: text", "lines", lambda good: b"0\n" * _VALUES),
    ("outputs: text", "words", lambda good: b"a b\n" * _VALUES),
    ("outputs: text", "a line", lambda good: _filled(b"", b"0 ", b"", TEXT)),
    ("outputs: text", "tables", lambda good: b"[0]" * _VALUES),
    ("outputs: text", "names", lambda good: _numbered(b"a%06x=[0] ", TEXT // 12)),
    ("outputs: text", "long names", lambda good: _filled(b"", b"a." * 150 + b"[0]", b"", TEXT)),
    ("outputs: text", "brackets", lambda good: _filled(b"", b"[", b"", TEXT)),
    ("golden: manifest", "lists", lambda good: _filled(b'{"schema":2,"goldens":{"a":{"batches":[', b"[],", b"0]}}}", JSON)),
    ("known failures", "entries", lambda good: _filled(b"", _CHECK, b"", SETTINGS)),
    ("known failures", "numbers", lambda good: _filled(b"a=[", b"0,", b"0]", SETTINGS)),
    ("known failures", "dots", lambda good: _numbered(b"a%05d" + b".a" * DOTS + b"=0\n", SETTINGS // (2 * DOTS + 9))),
    ("results", "activations", _of_records),
    ("batch: JSON", "numbers", lambda good: _filled(b'{"input_ids":[[', b"0,", b"0]]}", JSON)),
    ("batch: JSON", "lists", lambda good: _filled(b'{"input_ids":[', b"[],", b"[]]}", JSON)),
)


# Safetensors files of one tensor: the reader, the tensor's name and format, and the size of the file.
_ZEROS = (
    ("checkpoint: model.safetensors", "bert.embeddings.word_embeddings.weight", "F32", ARRAYS),
    ("checkpoint: model.safetensors", "bert.embeddings.word_embeddings.weight", "BF16", ARRAYS),
    ("sentences: 2_Dense/model.safetensors", "linear.weight", "F32", ARRAYS),
    ("reply: outputs", "embeddings.LayerNorm", "F32", ARRAYS),
    ("outputs: safetensors", "last_hidden_state", "BF16", OUTPUTS),
    ("golden: arrays", "batch/one/input_ids", "I64", OUTPUTS),
    ("trace", "activation/one/embeddings.LayerNorm", "F32", OUTPUTS),
    ("batch: safetensors", "input_ids", "I64", OUTPUTS),
)
_SIZES = {"BF16": 2, "F32": 4, "I64": 8}  # Bytes per element.


def _header(name: str, dtype: str, size: int) -> bytes:
    """Return the header of a safetensors file of one 2-d tensor."""
    room, columns = 2**10, 2**10  # room: bytes of the header, which may end in spaces.
    rows = (size - 8 - room) // (columns * _SIZES[dtype])
    length = rows * columns * _SIZES[dtype]
    table = {"__metadata__": _METADATA, name: {"dtype": dtype, "shape": [rows, columns], "data_offsets": [0, length]}}
    return (size - 8 - length).to_bytes(8, "little") + json.dumps(table).encode().ljust(size - 8 - length)


_ABOUT = {"implementation": "hf-eager", "golden": "tiny", "device": "cpu", "dtype": "float32"}
_METADATA = {name: _ABOUT.get(name, "0") for name in TraceOrigin.__struct_fields__}


def read_apart(reader: Reader, full: FullFile, folder: Path) -> Took:
    """Read a full file in place of the damaged file, in a forked process."""
    folder.mkdir(exist_ok=True)
    reader.write(folder, full.content)
    os.truncate(folder / reader.damaged, full.size)
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sending.send(_took(reader, folder)))
    process.start()
    sending.close()
    try:
        took: Took = receiving.recv()
    except EOFError:
        took = Took("ended", 0.0, 0.0)
    process.join()
    return took


def _took(reader: Reader, folder: Path) -> Took:
    with _memory() as taken:
        start, outcome = time.process_time(), "read"  # CPU time, which other processes do not affect.
        try:
            reader.read(folder)
        except ConformanceError:
            outcome = "typed error"
        except BaseException as error:
            outcome = f"untyped error: {type(error).__name__}: {error!s:.200}"
        seconds = time.process_time() - start
    return Took(outcome, seconds, max(taken))


@contextmanager
def _memory() -> Iterator[list[float]]:
    """Yield the list of memory samples in MiB above the initial value, taken every few milliseconds.

    Mapped files are not included, since the system can drop them.
    """
    before, ended, taken = status_mib("RssAnon"), threading.Event(), [0.0]

    def watch() -> None:
        while not ended.wait(0.005):
            taken.append(status_mib("RssAnon") - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield taken
    finally:
        ended.set()
        thread.join()
