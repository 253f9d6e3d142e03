"""Checkpoints of one task: barriers, snapshots, in-flight data, acknowledgements.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
