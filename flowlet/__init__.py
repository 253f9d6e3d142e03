"""Stateful stream processing in pure Python."""

from flowlet.errors import explain_missing_modules

explain_missing_modules()
