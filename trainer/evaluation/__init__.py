"""Offline evaluation: one protocol for our models and others', cell by cell of a matrix."""
