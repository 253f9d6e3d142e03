"""The JobManager: REST interface, slots, scheduling."""
