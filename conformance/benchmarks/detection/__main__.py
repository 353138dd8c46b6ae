"""`python -m conformance.benchmarks.detection`."""

from conformance.benchmarks.detection.score import main

if __name__ == "__main__":
    main()
