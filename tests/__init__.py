"""The tests: a folder for each package of `src/holdfast`; `scenarios/` by promise; `proofs/` by `pytest -m proof`."""
