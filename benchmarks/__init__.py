"""Our figures beside the raw limit and the peers: `python -m benchmarks [job ...]`.

Only ratios within one run count: a shared machine's milliseconds mean nothing tomorrow. So every contestant of a job
takes its turn in every round, and a bound is about the median of the rounds' ratios. No module of the package may
import this one, and no peer is a dependency of it.
"""
