"""Aggregations per key on numpy columns: codes in, columns out."""
