"""Makes text for a pull request."""
