"""Text for a pull request."""
