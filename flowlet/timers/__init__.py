"""Event time and processing time timers, by key.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
