"""What the translation of a graph into operators asks for: sources, outputs, columns, routing at producers.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
