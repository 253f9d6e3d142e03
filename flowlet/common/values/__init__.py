"""Values of declared types: checked, and as texts and back.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
