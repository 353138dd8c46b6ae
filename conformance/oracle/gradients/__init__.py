"""The steps of a backward pass: gradients with respect to inputs and parameters, computed from the gradient that arrives.

Each is a step as those of the forward pass are, with a value, Jacobians and roundings. Its first parent w is the upstream gradient
∂L/∂y; the others are what the forward step read, or its result. `conformance.model.gradients` says which.
"""
