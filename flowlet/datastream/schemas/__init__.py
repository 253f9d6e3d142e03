"""Checks of schemas, columns and windows while a program is built."""
