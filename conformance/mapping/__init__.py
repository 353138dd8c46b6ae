"""From a module of unknown names to its registration: what builds it, how it is called, its parameters and its activations.

`signature` and `call` read the constructor and the forward pass; `tensors` and `forms` list what each tensor of the module may be;
`identify` walks the oracle's network, with the module's own random parameters, and keeps the parameters with which each step gives
a tensor that the module computed; `taps` finds those tensors at its submodules; `source` writes the adaptor.
"""
