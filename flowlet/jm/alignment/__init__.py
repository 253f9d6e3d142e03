"""How far the sources of an alignment group may be ahead of each other.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
