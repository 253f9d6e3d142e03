"""A TaskManager's process: how it begins as a child of a program, its settings, its end.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
