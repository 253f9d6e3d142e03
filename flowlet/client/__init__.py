"""Hands job graphs to a cluster: embedded or remote."""
