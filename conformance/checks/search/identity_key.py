"""A key for caches that compares by identity."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class IdentityKey(Generic[T]):
    """A value as a key that equals only a key of the same object, not one of an equal object."""

    value: T

    def __hash__(self) -> int:
        """Of the object."""
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same object."""
        return isinstance(other, IdentityKey) and other.value is self.value
