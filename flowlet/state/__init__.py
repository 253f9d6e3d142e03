"""Keyed state: values of users per key, kept on the heap."""
