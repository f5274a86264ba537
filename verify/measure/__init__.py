"""Measures kernels: calls, judging, statistics, special values, timings, and runs over many kernels."""
