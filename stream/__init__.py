"""The stream service: Kafka events become a durable log, and every lane a partitioner's view of it."""

from stream.compiled import keep_kernels

keep_kernels()
