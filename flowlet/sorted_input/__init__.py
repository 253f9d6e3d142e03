"""Keyed inputs of BATCH mode: sorted by key in bounded memory, then handed over one key after the other.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
