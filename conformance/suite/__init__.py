"""The shipped test suite, run by `pytest --pyargs conformance.suite`."""
