"""Random integers and normal deviates from raw Philox output and integer arithmetic, bitwise identical on every machine.

`numpy.random.Philox(key=…).random_raw()` is the counter-based generator of Salmon et al. 2011, whose output NumPy guarantees;
`Generator` distributions and libm are not guaranteed and are not used. A normal deviate is an integer Irwin–Hall sum: twelve
16-bit integers have mean 6 · 65535 and standard deviation 65536 (to one part in 2^32), excess kurtosis −0.1.

Deviates are rounded to seven fractional bits and at most eight significant bits. With scales that are powers of two, every weight
is therefore exact in bfloat16, float16, float32 and float64, so that rounding of weights cannot explain an error.
"""

import hashlib

import numpy as np
import numpy.typing as npt

from conformance.numerics.formats import FORMATS, Array


class Stream:
    """A stream of random integers determined by a seed and a name, independently of other streams."""

    def __init__(self, seed: int, name: str) -> None:
        """Key the generator with the SHA-256 of seed and name."""
        digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        self._bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Return `count` raw 64-bit words."""
        return np.asarray(self._bits.random_raw(count), np.uint64)

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> npt.NDArray[np.int64]:
        """Return integers from `low` to `high` − 1; the bias of the modulo is below (high − low)/2^64."""
        words = self.words(int(np.prod(shape)))
        return (low + (words % np.uint64(high - low)).astype(np.int64)).reshape(shape)

    def normals(self, shape: tuple[int, ...]) -> Array:
        """Return normal deviates of standard deviation 1, rounded to eight significant bits (as bfloat16) and multiples of 2^-7."""
        count = int(np.prod(shape))
        words = self.words(3 * count).reshape(count, 3)
        parts = [(words >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
        total = sum(part.astype(np.int64).sum(-1) for part in parts) - 6 * 65535
        grid = (total // 512).astype(np.float64) / 128.0
        return FORMATS["bfloat16"].round(grid).reshape(shape)
