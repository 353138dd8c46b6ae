"""`python -m conformance.benchmarks.laws`."""

from conformance.benchmarks.laws.measure import main

if __name__ == "__main__":
    main()
