"""Tests the laws: for each law, a kernel with one seeded bug and its correct twin."""
