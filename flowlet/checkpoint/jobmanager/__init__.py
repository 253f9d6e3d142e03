"""The JobManager's part of checkpoints: when a job takes one, which are complete, and what a restart begins with.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
