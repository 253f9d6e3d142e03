"""Runs the sinks of users: writers, committers, functions."""
