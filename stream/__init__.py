"""The stream service: Kafka events become a durable log, and every lane a partitioner's view of it."""
