"""`python -m conformance.benchmarks`."""

from conformance.benchmarks.cost import main

if __name__ == "__main__":
    main()
