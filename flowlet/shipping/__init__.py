"""Files that a program ships with its job: packed by the client, kept in parts by the JobManager, laid out by
TaskManagers.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
