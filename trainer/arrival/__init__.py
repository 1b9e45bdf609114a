"""Scores on arrival: events scored as they are committed, beside a trainer."""
