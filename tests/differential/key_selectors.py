"""The key selectors of generated programs; they log nothing, since nobody promises how often a selector is called.

Side:       any.
"""

from typing import Any

from tests.differential.worlds import size


def by_size(record: Any) -> int:
    """Return a computed key."""
    return size(record) % 3


def by_type(record: Any) -> str:
    """Return a computed key that is a text."""
    return type(record).__name__


def first_field(record: Any) -> Any:
    """Return a field."""
    return record[0]


def k_field(record: Any) -> Any:
    """Return a field of a dict."""
    return record["k"]


def n_attribute(record: Any) -> int:
    """Return an attribute."""
    n: int = record.n
    return n


def constant(record: Any) -> int:
    """Return one key for all."""
    return 0
