"""Every golden's recipe, the quickest first; those in which a number that is hard-coded is wrong after them."""

from collections.abc import Mapping

from conformance.goldens import deep, edges, minilm, narrow_heads, odd_width, position_offset, sinusoidal, tanh, tiny, wide
from conformance.goldens.recipe import Recipe

_USUAL: tuple[Recipe, ...] = (tiny.RECIPE, edges.RECIPE, deep.RECIPE, wide.RECIPE, sinusoidal.RECIPE, tanh.RECIPE)
_UNUSUAL: tuple[Recipe, ...] = (odd_width.RECIPE, narrow_heads.RECIPE, position_offset.RECIPE)
RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in (*_USUAL, *_UNUSUAL, minilm.RECIPE)}
