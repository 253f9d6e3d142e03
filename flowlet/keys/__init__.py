"""Keys: which values are one key, their hashes, and the subtask of each.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
