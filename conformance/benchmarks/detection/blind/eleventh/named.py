"""The names that are right for each mistake of the eleventh set, by the rule in its `hoped`; none is decided yet."""

from collections.abc import Mapping

RIGHT: Mapping[str, tuple[str, ...]] = {}
"""By mistake."""
