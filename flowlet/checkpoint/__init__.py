"""Checkpoints, on two floors: those of one task in ``task``, those of a job in ``jobmanager``.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
