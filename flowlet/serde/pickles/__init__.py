"""Pickles values of any type; reads only plain values from senders that are not trusted.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
