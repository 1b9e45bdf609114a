"""Lanes: what each snapshot changed, part by part, for one partitioner; one writer, many readers."""
