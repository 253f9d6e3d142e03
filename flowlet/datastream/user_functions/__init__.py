"""The classes and callables that users write, and their checks.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
