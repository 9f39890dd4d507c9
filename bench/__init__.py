"""Benchmarks: every figure beside its floor, taken in the same run. ``python -m bench --help``."""
