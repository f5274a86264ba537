"""Looks for worst inputs in two ways: `sweep` tries every input, `hunt` climbs from input to input.

Importing the package imports no torch.
"""
