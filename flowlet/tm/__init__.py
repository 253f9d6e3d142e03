"""The TaskManager: the process in which tasks run.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
