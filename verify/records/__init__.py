"""The run record as JSON, and what needs nothing else: identity, merging, figures by key, comparison, history."""
