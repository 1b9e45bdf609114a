"""Micro-batches in, commits of the log out, beside what is taken in: no Beam, no Kafka."""
