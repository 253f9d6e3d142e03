"""Keyed state: values of users per key, kept on the heap.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
