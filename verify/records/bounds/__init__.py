"""Holds committed bounds, compares a record with them, and changes them."""
