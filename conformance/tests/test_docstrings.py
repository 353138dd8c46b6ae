"""Examples in docstrings run, and every public name except the exceptions has one.

The examples assume `from conformance import *`, NumPy as `np`, `torch`, and `torch.nn` as `nn`."""

import doctest
import inspect

import numpy as np
import torch

import conformance

PUBLIC = [
    name for name in conformance.__all__ if not (inspect.isclass(o := getattr(conformance, name)) and issubclass(o, Exception))
]


def test_the_example_of_a_public_name_runs() -> None:
    names = {other: getattr(conformance, other) for other in conformance.__all__} | {"np": np, "torch": torch, "nn": torch.nn}
    report: list[str] = []
    for name in PUBLIC:
        examples = doctest.DocTestFinder(recurse=False).find(getattr(conformance, name), name, globs=names)
        assert sum(len(example.examples) for example in examples) >= 1, f"conformance.{name} has no example"
        for example in examples:
            doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(example, out=report.append)
    assert not report, "".join(report)
