"""The accuracy of library functions: the measurements in `conformance/numerics/measured_error_bounds.json`.

`python -m conformance.benchmarks.functions` measures every installed library, and torch under each instruction set that this
machine can dispatch, each in a separate process, and prints one row each; `--write` saves the rows in the table, replacing earlier
rows of the same library, version and instruction set.
"""
