"""The formats of outputs that `diagnose` reads, each with an example that `diagnose --help` shows and the tests read."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent


@dataclass(frozen=True)
class OutputFormat:
    """A format of outputs.

    Attributes:
        source: program or function that writes this format.
        example: content of a file with the embedding (0.125, -0.5, 0.75, 0.25); or, if `is_code`, the line of Python that writes
            the file `out` + suffix from this embedding, x.
        suffix: suffix of the file.
    """

    source: str
    example: str
    suffix: str = ".txt"

    @property
    def is_code(self) -> bool:
        """Whether the example is the line of Python that writes the file."""
        return self.suffix not in (".txt", ".json")


FORMATS: Sequence[OutputFormat] = (
    OutputFormat("PyTorch and NumPy, print(x) or repr(x)", "tensor([[ 0.1250, -0.5000,  ...,  0.2500]], dtype=torch.float64)"),
    OutputFormat("a list of NumPy scalars", "[np.float32(0.125), np.float32(-0.5), np.float32(0.75), np.float32(0.25)]"),
    OutputFormat('candle, println!("{x}")', "[[ 0.1250, -0.5000, ...,  0.2500]]\nTensor[[1, 4], f32]"),
    OutputFormat("Rust, {:?}, {:#?} or dbg! of a Vec", "[src/main.rs:7:5] &x = [\n    0.125,\n    -0.5,\n    0.75,\n    0.25,\n]"),
    OutputFormat(
        "Rust, {:?} of an ndarray", "[[0.125, -0.5, 0.75, 0.25]], shape=[1, 4], strides=[4, 1], layout=Cc (0x5), const ndim=2"
    ),
    OutputFormat("lines of numbers, as printed by llama-embedding", "embedding 0:  0.125000 -0.500000  0.750000  0.250000"),
    OutputFormat("JSON with the inputs", '{"text": ["A lamp."], "embedding": [[0.125, -0.5, null, 0.25]]}', ".json"),
    OutputFormat("a bare list, as returned by TEI's /embed", "[[0.125, -0.5, 0.75, 0.25]]", ".json"),
    OutputFormat(
        "OpenAI's /v1/embeddings", '{"data": [{"index": 0, "embedding": [0.125, -0.5, 0.75, 0.25]}], "model": "m"}', ".json"
    ),
    OutputFormat("Ollama's /api/embed", '{"model": "m", "embeddings": [[0.125, -0.5, 0.75, 0.25]], "total_duration": 7}', ".json"),
    OutputFormat("llama.cpp's /embedding", '[{"index": 0, "embedding": [[0.125, -0.5, 0.75, 0.25]]}]', ".json"),
    OutputFormat("NumPy, one array", 'numpy.save("out.npy", x)', ".npy"),
    OutputFormat("NumPy, arrays by name", 'numpy.savez("out.npz", embedding=x)', ".npz"),
    OutputFormat("safetensors", 'safetensors.numpy.save_file({"embedding": x}, "out.safetensors")', ".safetensors"),
)


def shown() -> str:
    """Return every format with its example, for `--help`."""
    return "\n".join(f"{known.source} ({known.suffix}):\n{indent(known.example, '    ')}" for known in FORMATS)
