"""What each of the mistakes is rightly called."""

from collections.abc import Mapping

RIGHT: Mapping[str, tuple[str, ...]] = {}
"""The names that are right for each mistake, by the mistake's name."""
