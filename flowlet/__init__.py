"""Stateful stream processing in pure Python."""

from typing import TYPE_CHECKING

from flowlet.errors import explain_missing_modules, missing_top_level_name

explain_missing_modules()

if not TYPE_CHECKING:
    __getattr__ = missing_top_level_name
