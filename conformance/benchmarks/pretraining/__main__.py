"""`python -m conformance.benchmarks.pretraining`."""

from conformance.benchmarks.pretraining.measure import main

if __name__ == "__main__":
    main()
