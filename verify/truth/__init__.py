"""Finds right answers and measures errors against them: formats, ulp, exact values, enclosures, fast references."""
