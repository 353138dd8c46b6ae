"""The shipped suite: `pytest --pyargs conformance.suite`."""
