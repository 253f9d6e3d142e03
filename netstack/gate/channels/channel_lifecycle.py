"""The life of an input channel.

Side:   pure.
Source: Flink ``InputChannel``: its ``subpartitionView`` or ``partitionRequestClient`` is set once, ``isReleased`` once.
"""

from enum import Enum, auto
from typing import Final


class ChannelLifecycle(Enum):
    """A channel only moves on; an error does not change its state, it is what the next poll raises."""

    CREATED = auto()
    """It may be set up; polling it, or an order to its producer, is a mistake."""
    REQUESTED = auto()
    """Its data was asked for, and is polled."""
    RELEASED = auto()
    """It gave everything back and takes in nothing more."""


NEXT: Final = {
    ChannelLifecycle.CREATED: frozenset({ChannelLifecycle.REQUESTED, ChannelLifecycle.RELEASED}),
    ChannelLifecycle.REQUESTED: frozenset({ChannelLifecycle.RELEASED}),
    ChannelLifecycle.RELEASED: frozenset[ChannelLifecycle](),
}
