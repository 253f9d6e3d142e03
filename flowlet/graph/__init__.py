"""Stream graph, job graph and execution graph.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
