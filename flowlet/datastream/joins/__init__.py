"""Joins as users write them: ``join(...)``, ``co_group(...)``, ``interval_join(...)``."""
