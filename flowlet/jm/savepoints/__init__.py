"""The savepoints of jobs, as users ask for them.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
