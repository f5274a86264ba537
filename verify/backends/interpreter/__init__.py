"""Triton's interpreter made faithful to a GPU: `install` replaces its operations by those of the other modules."""
