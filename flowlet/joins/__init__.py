"""The operators of joins."""
