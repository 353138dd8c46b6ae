"""`python -m conformance.benchmarks.gradients`."""

from conformance.benchmarks.gradients.measure import main

if __name__ == "__main__":
    main()
