"""What a chain of operators is made of: the operator, the loop that runs through all of them, and the ways out.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
