"""When a job takes checkpoints, which of them are complete, and what its tasks begin with after a restart.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
