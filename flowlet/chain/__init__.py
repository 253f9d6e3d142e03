"""The parts of a chain: the operators, the loop that runs through all of them, and the outputs.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
