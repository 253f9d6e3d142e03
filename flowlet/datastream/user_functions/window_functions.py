"""Functions of the records of a window.

Side:   pure.  An instance is made in the user's program, pickled, and called on the thread of one task.
Source: PyFlink ``pyflink.datastream.functions``, which exports them, too.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic

from flowlet.datastream.user_functions.argument_checks import IN, KEY, OUT, W2, W
from flowlet.datastream.user_functions.function import Function, KeyedStateStore


class WindowFunction(Function, Generic[IN, OUT, KEY, W]):
    """Returns any number of records for each window of a key."""

    @abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        """The results of a window, from its records, or from the one record that they were combined to."""


class AllWindowFunction(Function, Generic[IN, OUT, W]):
    """Returns any number of records for each window of a stream without keys."""

    @abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        """The results of a window, from its records, or from the one record that they were combined to."""


class ProcessWindowFunction(Function, Generic[IN, OUT, KEY, W]):
    """A ``WindowFunction`` with a context: clock, watermark and state."""

    class Context(ABC, Generic[W2]):
        """The window that is evaluated; valid during the call."""

        @abstractmethod
        def window(self) -> W2:
            """The window."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """What the clock shows, in milliseconds since the epoch."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The event time that the operator has reached."""

        @abstractmethod
        def window_state(self) -> KeyedStateStore:
            """Makes states of this key and window, which ``clear`` must clear; not for windows that become one, such as
            sessions.
            """

        @abstractmethod
        def global_state(self) -> KeyedStateStore:
            """Makes states of this key, for all its windows."""

    @abstractmethod
    def process(self, key: KEY, context: "ProcessWindowFunction.Context[W]", elements: Iterable[IN]) -> Iterable[OUT]:
        """The results of a window; ``(tag, value)`` goes to the side output of a tag."""

    def clear(self, context: "ProcessWindowFunction.Context[W]") -> None:
        """The window ends: clear its states."""


class ProcessAllWindowFunction(Function, Generic[IN, OUT, W]):
    """An ``AllWindowFunction`` with a context: clock, watermark and state."""

    class Context(ABC, Generic[W2]):
        """The window that is evaluated; valid during the call."""

        @abstractmethod
        def window(self) -> W2:
            """The window."""

        @abstractmethod
        def window_state(self) -> KeyedStateStore:
            """Makes states of this window, which ``clear`` must clear; not for windows that become one, such as
            sessions.
            """

        @abstractmethod
        def global_state(self) -> KeyedStateStore:
            """Makes states for all windows."""

    @abstractmethod
    def process(self, context: "ProcessAllWindowFunction.Context[W]", elements: Iterable[IN]) -> Iterable[OUT]:
        """The results of a window; ``(tag, value)`` goes to the side output of a tag."""

    def clear(self, context: "ProcessAllWindowFunction.Context[W]") -> None:
        """The window ends: clear its states."""
