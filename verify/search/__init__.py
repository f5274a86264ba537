"""Two ways to look for worst inputs: `sweep` tries every input, `hunt` climbs from input to input.

Importing the package imports no torch.
"""
