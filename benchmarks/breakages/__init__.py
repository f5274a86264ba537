"""Measures how the default limits separate honest implementations from broken ones: python -m benchmarks.breakages"""
