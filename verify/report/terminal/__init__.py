"""Makes text for a terminal of a given width."""
