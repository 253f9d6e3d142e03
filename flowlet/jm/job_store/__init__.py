"""What a JobManager keeps of its jobs on disk, so that another one can go on with them.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
