"""The operators, sources and sinks that run inside one task.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
