"""Holds the run record as JSON, and all that needs only a record: identity, merging, figures, comparison, history."""
