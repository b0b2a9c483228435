"""Benchmarks of holdfast, compared with a raw limit and with peers: `python -m benchmarks [job ...]`.

The raw limit is the plainest code that stores the same bytes; the peers are other agent libraries. Only ratios within
one run are meaningful, because the milliseconds of a shared machine change from day to day. So every contestant of a
job runs in every round, and a bound applies to the median of the ratios of the rounds. No module of the package may
import this package, and no peer is a dependency of it.
"""
