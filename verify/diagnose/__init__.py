"""Finds the cause of a finding: replay, a script that shows it, compute-sanitizer, the step that makes the error."""
