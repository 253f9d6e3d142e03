"""The JobManager: REST, slots, scheduling."""
