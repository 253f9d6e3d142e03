"""Operators, sources and sinks: what runs inside one task."""
