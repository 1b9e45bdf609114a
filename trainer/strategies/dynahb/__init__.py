"""DynaHB: batches of some snapshots and some nodes, learned apart and averaged."""
