"""Verification of a store against its records and itself: log, lanes, and every snapshot rebuilt."""
