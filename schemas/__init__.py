"""The contract between producers, the stream job, the store and the trainers: types only, no I/O."""
