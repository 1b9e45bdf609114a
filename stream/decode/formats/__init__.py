"""Formats of messages: each reads, writes and describes its own; found by name, in this package and in others."""
