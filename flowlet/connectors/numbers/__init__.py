"""Numbers, and records that a function makes of them.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
