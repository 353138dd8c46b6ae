"""The lanes: environments and settings of a process. Torch reads the environment variables when it is loaded."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

PLAIN = "highest"


@dataclass(frozen=True)
class Lane:
    """The environment and settings of one process.

    Attributes:
        name: name in the table.
        environment: environment variables; those of the other lanes are unset.
        threads: number of torch's threads.
        flush: whether subnormals are flushed to zero (`torch.set_flush_denormal`).
        precision: argument of `torch.set_float32_matmul_precision`.
        needs: a flag of `torch.cpu.get_capabilities()` without which the lane is identical to another; None if it needs none.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    flush: bool = False
    precision: str = PLAIN
    needs: str | None = None

    @property
    def setting(self) -> str:
        """The distinguishing settings of the lane, as text."""
        parts = [f"`{name}={value}`" for name, value in self.environment.items()]
        parts += ["subnormals flushed to zero"] * self.flush
        parts += [f'`set_float32_matmul_precision("{self.precision}")`'] * (self.precision != PLAIN)
        parts += [f"{self.threads} threads"] * (self.threads != 1)
        return ", ".join(parts) or "nothing set, one thread"


ISA, CAPABILITY, BRANCH = "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_CBWR"
LANES: Mapping[str, Lane] = {
    lane.name: lane
    for lane in (
        Lane("default"),
        Lane("two-threads", threads=2),
        Lane("onednn-avx512-core", {ISA: "AVX512_CORE"}, needs="avx512_f"),
        Lane("onednn-avx2", {ISA: "AVX2"}, needs="avx2"),
        Lane("onednn-sse41", {ISA: "SSE41"}, needs="sse4_1"),
        Lane("aten-avx512", {CAPABILITY: "avx512"}, needs="avx512_f"),
        Lane("aten-avx2", {CAPABILITY: "avx2"}, needs="avx2"),
        Lane("aten-default", {CAPABILITY: "default"}, needs="avx2"),
        Lane("mkl-compatible", {BRANCH: "COMPATIBLE"}, needs="sse4_1"),
        Lane("oldest-x86", {ISA: "SSE41", CAPABILITY: "default", BRANCH: "COMPATIBLE"}, needs="sse4_1"),
        Lane("flush-subnormals", flush=True),
        Lane("matmul-medium", precision="medium"),
    )
}
VARIABLES = frozenset((ISA, CAPABILITY, BRANCH, "OMP_NUM_THREADS", "MKL_NUM_THREADS"))


def environment(lane: Lane) -> dict[str, str]:
    """Return the environment of this process, with the lane's variables and without those of other lanes."""
    others = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return {**others, **lane.environment, "OMP_NUM_THREADS": str(lane.threads)}


def lacking(lane: Lane, capabilities: Mapping[str, object]) -> str:
    """Return why the lane cannot run on a CPU with these capabilities; empty if it can."""
    if lane.needs is None or capabilities.get(lane.needs):
        return ""
    return f"the CPU ({capabilities.get('architecture', 'unknown')}) has no {lane.needs}"
