"""The cost of judging, as ratios to the plain pass, in one process: `python -m conformance.benchmarks.cost [backward]`.

The network has base size (width 768, 12 heads, random weights; batch 8, length 128, float32) and Hugging Face's eager attention.

- *plain*: a pass without hooks; the median of five.
- *hooks*: a pass with everything that is judged copied at its hook and then discarded.
- *assert_close*: hooks, and `torch.testing.assert_close` at its defaults of everything against a second pass.
- *full, nothing cached*, *full*, *screen*: a judged run with an empty cache, which it fills, one with that cache, and one at depth
  screen.
- *bfloat16 …*: the same of a candidate of one layer in bfloat16, whose own forward pass is slow on a CPU, as ratios to the plain
  pass of this layer in float32.

Memory is the peak resident size of a judged run above that of a plain pass, with one row of the batch, for networks of several
depths, each in a separate process: it must not grow with depth. With `backward`, a pass is a forward and a backward pass.
"""

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from conformance.benchmarks.harness import parser, publish, table
from conformance.benchmarks.resources import Seconds, median, peak_mib, ratio, times
from conformance.benchmarks.subject import LAYERS, Backward, Subject
from conformance.judge import cache

Measure = Callable[[int, int], Iterator[str]]
NUMBERS_OF_LAYERS = (6, 12, 24, 48)
HALF, HALF_LAYERS = "bfloat16", 1
PAGES = {what: Path(__file__).with_name(f"COST{suffix}.md") for what, suffix in (("forward", ""), ("backward", ".backward"))}


@contextmanager
def empty_cache() -> Iterator[None]:
    """Return a context in which the accumulated sigma is kept in an empty folder."""
    with tempfile.TemporaryDirectory() as home:
        os.environ[cache.VARIABLE] = home
        yield


def compared(plain: Sequence[Seconds], work: Mapping[str, Callable[[], object]], repeats: int) -> Iterator[tuple[object, ...]]:
    """Yield the ratio of each measurement; those of a repeat share a cache, which the first of them that uses it fills."""
    measured: dict[str, list[Seconds]] = {what: [] for what in work}
    for _ in range(repeats):
        with empty_cache():
            for what, each in work.items():
                measured[what] += times(each, 1)
    yield from ((what, *ratio(each, plain)) for what, each in measured.items())


def plain_times(subject: Subject) -> list[Seconds]:
    """Return the times of five plain passes, after one that is not counted."""
    subject.plain()
    return times(subject.plain, 5)


def judged(subject: Subject, before: str = "") -> dict[str, Callable[[], object]]:
    """Return the judged runs by name, in their order: the first fills the cache that the others read."""
    screen = partial(subject.verdicts, "screen")
    return {f"{before}full, nothing cached": subject.verdicts, f"{before}full": subject.verdicts, f"{before}screen": screen}


HEADINGS = ("measurement", "times a plain pass", "least", "largest", "CPU")


def forward(layers: int, repeats: int) -> Iterator[str]:
    """Yield the costs of judging forward passes, and the memory."""
    subject = Subject(layers)
    plain = plain_times(subject)
    yield f"A plain forward pass of {layers} layers takes {median(plain).wall:.3g} s."
    yield ""
    work = {"hooks": subject.hooks, "assert_close": subject.assert_close, **judged(subject)}
    half = Subject(HALF_LAYERS, dtype=HALF)
    of_half = {f"{HALF} plain": half.plain, **judged(half, f"{HALF} ")}
    yield from table(HEADINGS, (*compared(plain, work, repeats), *compared(plain_times(Subject(HALF_LAYERS)), of_half, repeats)))
    yield ""
    # Side by side, since no time is measured, the deepest network first.
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        peaks = list(pool.map(_peak_above_plain, reversed(NUMBERS_OF_LAYERS)))
    yield from table(("layers", "MiB above a plain pass, one row"), zip(NUMBERS_OF_LAYERS, reversed(peaks), strict=True))


def _peak_above_plain(layers: int) -> int:
    """Return the peak memory of a judged run above that of a plain pass, in MiB."""
    os.environ[cache.VARIABLE] = cache.OFF
    subject = Subject(layers, size=1)
    plain = peak_mib(subject.plain)
    return round(peak_mib(subject.verdicts) - plain)


def backward(layers: int, repeats: int) -> Iterator[str]:
    """Yield the costs of judging backward passes."""
    subject = Backward(layers)
    plain = plain_times(subject)
    yield f"A plain forward and backward pass of {layers} layers takes {median(plain).cpu:.3g} CPU seconds."
    yield ""
    yield from table(HEADINGS, compared(plain, {"hooks": subject.hooks, **judged(subject)}, repeats))


def main() -> None:
    """Measure and print the costs; `--write` also saves them."""
    options = parser(__doc__, PAGES["forward"], parallel=False)
    options.add_argument("what", nargs="?", choices=PAGES, default="forward")
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--layers", type=int, default=LAYERS)
    chosen = options.parse_args()
    measures: Mapping[str, Measure] = {"forward": forward, "backward": backward}
    lines = measures[chosen.what](chosen.layers, chosen.repeats)
    publish(PAGES[chosen.what], f"Cost, {chosen.what}", lines, write=chosen.write)


if __name__ == "__main__":
    main()
