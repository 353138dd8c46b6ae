"""Every golden's recipe, the quickest first."""

from collections.abc import Mapping

from conformance.goldens import deep, edges, minilm, sinusoidal, tanh, tiny, wide
from conformance.goldens.recipe import Recipe

_ALL: tuple[Recipe, ...] = (tiny.RECIPE, edges.RECIPE, deep.RECIPE, wide.RECIPE, sinusoidal.RECIPE, tanh.RECIPE, minilm.RECIPE)
RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in _ALL}
