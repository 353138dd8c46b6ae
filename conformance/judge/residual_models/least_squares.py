"""Weighted least squares.

With weights 1/σ² (`ResidualProblem.root_weights`), target t and terms A, the coefficients are (AᵀA)⁻¹ Aᵀ t. Their variance is
the larger of two estimates: the diagonal of (AᵀA)⁻¹ times the remaining sum of squares per degree of freedom (at least 1), and the
diagonal of (AᵀA)⁻¹ (Σ_rows gᵣ gᵣᵀ) (AᵀA)⁻¹ with gᵣ the row's share of Aᵀ e, because errors in the same row are correlated (Liang
and Zeger 1986, *Biometrika* 73, section 3).
"""

from collections.abc import Sequence

import numpy as np

from conformance.judge.residual_models.residual_problem import ResidualProblem
from conformance.numerics.formats import Array


def fitted(case: ResidualProblem, values: Sequence[Array], target: Array) -> tuple[Array, Array]:
    """Return the least-squares coefficients of `values`, each (R, F), for `target`, and their standard deviations."""
    root = case.root_weights
    columns = np.stack([(root * v).ravel() for v in values], 1)
    weighted = np.where(case.kept, root * target, 0.0).ravel()
    lengths = np.maximum(np.linalg.norm(columns, axis=0), np.finfo(np.float64).tiny)
    coefficients, *_ = np.linalg.lstsq(columns / lengths, weighted, rcond=None)
    left = weighted - columns / lengths @ coefficients
    inverse = np.linalg.pinv((columns / lengths).T @ (columns / lengths))
    degrees = max(case.count - len(values), 1)
    plain = np.diag(inverse) * max(float(left @ left) / degrees, 1.0)
    by_row = (columns / lengths * left[:, None]).reshape(*case.kept.shape, -1).sum(1)
    clustered = np.diag(inverse @ (by_row.T @ by_row) @ inverse)
    return coefficients / lengths, np.sqrt(np.maximum(plain, clustered)) / lengths
