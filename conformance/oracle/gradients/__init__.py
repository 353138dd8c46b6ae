"""The steps of a backward pass: gradients with respect to inputs and parameters, computed from the upstream gradient.

Like a forward step, each has a value, Jacobians and rounding errors. Its first parent w is the upstream gradient ∂L/∂y; the other
parents are inputs of the forward step, or its result, as specified by `conformance.model.gradients`.
"""
