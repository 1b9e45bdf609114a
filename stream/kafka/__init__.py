"""Everything that speaks Kafka: reading topic partitions, replaying files, dead letters, group offsets, the demo's broker."""

from stream.kafka.internals import require_known

require_known()
