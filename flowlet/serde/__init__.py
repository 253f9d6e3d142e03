"""Serializes stream elements, values of declared types, and the parts of a deployment.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
