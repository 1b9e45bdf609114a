"""The one step that changes weights, its rate, and its guard against numbers that are not finite."""
