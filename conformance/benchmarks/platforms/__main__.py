"""`python -m conformance.benchmarks.platforms`."""

from conformance.benchmarks.platforms.measure import main

if __name__ == "__main__":
    main()
