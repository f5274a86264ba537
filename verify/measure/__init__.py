"""Measures kernels: calls, judging, statistics, special values and timings of one kernel, and runs over many kernels.
"""
