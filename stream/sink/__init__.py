"""Takes micro-batches and commits them to the log, without Beam or Kafka."""
