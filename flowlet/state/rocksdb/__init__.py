"""Keyed state in RocksDB: on the local disk, larger than memory, with checkpoints of what has changed.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
