"""Everything that speaks Kafka: reading topic partitions, replaying files, dead letters, group offsets, the demo's broker."""
