"""Checkpoints of one task: barriers, snapshots, in-flight data, acknowledgements."""
