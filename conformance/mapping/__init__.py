"""Automatic registration of a module with unknown names: its constructor, its call, its parameters and its activations.

`signature` and `call` inspect the constructor and the forward pass; `tensors` lists the parameters that each tensor of the module
may hold; `identify` computes the oracle's network with the module's own random parameters, and selects the
parameters with which each step yields a tensor that the module computed; `taps` locates these tensors at submodules; `source`
writes the adaptor, and `implementation` tries it on a network of another depth.
"""
