"""Makes one self-contained page."""
