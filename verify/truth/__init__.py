"""What the right answer is and how far a value is from it: formats, ulp, exact values, enclosures, fast references."""
