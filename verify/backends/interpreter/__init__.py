"""Triton's interpreter made faithful: `install` puts the operations of the other modules in its place."""
