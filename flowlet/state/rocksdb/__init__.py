"""Keyed state in RocksDB: on the local disk, larger than memory, with checkpoints of what has changed."""
