"""Lanes: the changes of each snapshot, part by part, for one partitioner; one writer, many readers."""
