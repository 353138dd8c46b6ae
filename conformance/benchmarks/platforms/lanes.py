"""The lanes: environments and settings of a process. Torch reads the environment variables when it is loaded."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


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
    precision: str = "highest"
    needs: str | None = None

    @property
    def setting(self) -> str:
        """The distinguishing settings of the lane, as text."""
        parts = [f"`{name}={value}`" for name, value in self.environment.items()]
        parts += ["subnormals flushed to zero"] * self.flush
        parts += [f'`set_float32_matmul_precision("{self.precision}")`'] * (self.precision != "highest")
        parts += [f"{self.threads} threads"] * (self.threads != 1)
        return ", ".join(parts) or "nothing set, one thread"


def _onednn(isa: str, needs: str) -> Lane:
    return Lane(f"onednn-{isa.lower().replace('_', '-')}", {"ONEDNN_MAX_CPU_ISA": isa}, needs=needs)


def _aten(capability: str, needs: str) -> Lane:
    return Lane(f"aten-{capability}", {"ATEN_CPU_CAPABILITY": capability}, needs=needs)


LANES: Mapping[str, Lane] = {
    lane.name: lane
    for lane in (
        Lane("default"),
        Lane("two-threads", threads=2),
        _onednn("AVX512_CORE", "avx512_f"),
        _onednn("AVX2", "avx2"),
        _onednn("SSE41", "sse4_1"),
        _aten("avx512", "avx512_f"),
        _aten("avx2", "avx2"),
        _aten("default", "avx2"),
        Lane("mkl-compatible", {"MKL_CBWR": "COMPATIBLE"}, needs="sse4_1"),
        Lane(
            "oldest-x86",
            {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
            needs="sse4_1",
        ),
        Lane("flush-subnormals", flush=True),
        Lane("matmul-medium", precision="medium"),
    )
}
VARIABLES = frozenset(name for lane in LANES.values() for name in lane.environment) | {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}


def environment(lane: Lane) -> dict[str, str]:
    """Return the environment of this process, with the lane's variables and without those of other lanes."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return {**kept, **lane.environment, "OMP_NUM_THREADS": str(lane.threads)}


def lacking(lane: Lane, capabilities: Mapping[str, object]) -> str:
    """Return why the lane cannot run on a CPU with these capabilities; empty if it can."""
    if lane.needs is None or capabilities.get(lane.needs):
        return ""
    return f"the CPU ({capabilities.get('architecture', 'unknown')}) has no {lane.needs}"
