"""Stateful stream processing in pure Python."""
