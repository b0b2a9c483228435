"""The data that the benchmarks use."""
