"""Models by name, and their common interface."""
