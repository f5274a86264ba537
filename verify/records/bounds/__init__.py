"""Committed bounds, the verdict on a record that is held against them, and how bounds change."""
