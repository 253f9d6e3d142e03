"""Columns of values of declared types: what a remote gate with a type reads, and nothing else."""
