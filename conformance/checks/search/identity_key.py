"""A cache key that compares by identity."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class IdentityKey(Generic[T]):
    """A key that is equal only to a key of the same object, not to a key of an equal object."""

    value: T

    def __hash__(self) -> int:
        """Return a hash of the object's identity."""
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        """Return whether the other key is of the same object."""
        return isinstance(other, IdentityKey) and other.value is self.value
