"""Models by name, and what every model must offer."""
