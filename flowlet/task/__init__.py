"""Stream tasks: a chain of operators with its gates, partitions and mailbox loop.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
