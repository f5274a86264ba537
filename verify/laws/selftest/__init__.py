"""A kernel with one seeded bug for each law, and its correct twin."""
