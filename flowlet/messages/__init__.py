"""The messages between processes: the structs of the control protocol, and the states of executions.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
