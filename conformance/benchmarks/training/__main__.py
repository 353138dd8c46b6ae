"""`python -m conformance.benchmarks.training`."""

from conformance.benchmarks.training.measure import main

if __name__ == "__main__":
    main()
