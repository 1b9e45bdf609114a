"""A store checked against its records and itself: log, lanes, and every snapshot rebuilt."""
