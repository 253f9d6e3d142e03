"""Promises of the connector base classes."""

from flowlet.datastream.connectors import DiscardingSink, Sink, Source
from flowlet.datastream.connectors.base import DiscardingSink as FromBase


def test_connectors_are_found_in_the_package_too() -> None:
    assert DiscardingSink is FromBase
    assert isinstance(DiscardingSink(), Sink)


def test_a_source_ends_unless_it_says_otherwise() -> None:
    assert Source().is_bounded is True
