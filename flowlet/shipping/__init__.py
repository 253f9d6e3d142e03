"""The bundle of a program: made by the client, kept by the JobManager, unpacked and imported by TaskManagers.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
