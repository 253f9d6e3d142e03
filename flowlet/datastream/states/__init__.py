"""States, their descriptors, and the lifetime of their entries.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
