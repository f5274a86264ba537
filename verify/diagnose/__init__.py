"""Finds the cause of a finding: replay, a script that shows it, the step that makes the error."""
