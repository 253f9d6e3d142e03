"""Benchmarks: ``python -m bench CASE`` prints one JSON object per case."""
