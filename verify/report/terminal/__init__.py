"""Text for a terminal of a given width."""
