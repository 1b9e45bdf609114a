"""Whole files, records that are written once, locks, watches and sweeps."""
