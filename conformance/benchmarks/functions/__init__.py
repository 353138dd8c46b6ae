"""The accuracy of libraries' functions: the measurements behind `conformance/numerics/functions.json`.

`python -m conformance.benchmarks.functions` measures every library that is here, torch under each instruction set that this
machine can dispatch, each in a process of its own, and prints a row each; `--write` puts them into the table, in place of earlier
rows of the same library, version and instruction set.
"""
