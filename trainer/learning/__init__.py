"""The one step that changes weights, its rate, and its guard against non-finite numbers."""
