"""Joins as users write them: ``join(...)``, ``co_group(...)``, ``interval_join(...)``.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
