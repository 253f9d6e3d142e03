"""Splits of a source and their enumerators, for JobManager and tasks."""
