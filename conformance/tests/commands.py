"""Commands of the command line, run in this process, and candidates that pass, fail and crash."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from conformance.implementations.hugging_face import HuggingFace
from conformance.tests.planted_mistakes import Planted, epsilon


@dataclass(frozen=True)
class Ended:
    """A command that ended: its exit code and what it printed."""

    code: object
    out: str
    err: str

    @property
    def words(self) -> str:
        """Everything that it printed, without the line breaks."""
        return " ".join((self.out + self.err).split())


Command = Callable[..., Ended]


class Crashing(HuggingFace):
    """A candidate that raises halfway through its forward pass."""

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        runner = super().prepare(checkpoint, device, dtype)

        def run(batch: Any) -> Iterator[tuple[str, Any]]:
            for name, value in runner(batch):
                if name == "encoder.layer.1.attention.self.query":
                    raise RuntimeError("out of luck")
                yield name, value

        return run


failing = Planted(epsilon(0))
crashing = Crashing("eager")
FAILING, CRASHING = f"{__name__}:failing", f"{__name__}:crashing"
