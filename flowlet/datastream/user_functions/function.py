"""The base classes of functions, and how they take part in checkpoints.

Side:   pure.
Source: PyFlink ``pyflink.datastream.functions``: ``Function``; that module exports it, too.  Flink
        ``CheckpointedFunction``, ``CheckpointListener``, which PyFlink lacks, with names in the style of Python.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from flowlet.errors import JobGraphError

if TYPE_CHECKING:
    from flowlet.datastream.states.runtime_context import (
        FunctionInitializationContext,
        FunctionSnapshotContext,
        RuntimeContext,
    )


class Function(ABC):  # noqa: B024  # open and close may, but need not be overridden
    """Base class of all functions: ``open`` before the first record, ``close`` after the last one
    or after a failure.
    """

    def open(self, runtime_context: "RuntimeContext") -> None:  # noqa: B027  # nothing to do unless overridden
        """Prepare for the first record; on the task's thread."""

    def close(self) -> None:  # noqa: B027  # nothing to do unless overridden
        """Release the resources that ``open`` acquired."""


class WrappingFunction(Function):
    """Opens and closes the function inside of it, unless that is a plain callable."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def open(self, runtime_context: "RuntimeContext") -> None:
        """Open the function."""
        if isinstance(self._function, Function):
            self._function.open(runtime_context)

    def close(self) -> None:
        """Close the function."""
        if isinstance(self._function, Function):
            self._function.close()


class WrittenInPython:
    """A class that wraps an object of Java in PyFlink: here only classes derived from it have instances."""

    _instead: ClassVar[str]

    def __new__(cls, *args: object, **named: object) -> Self:
        """Make an instance of a derived class.

        Raises JobGraphError: the class itself is called with an argument, as PyFlink's is with an object of Java.
        """
        if args and "_instead" in vars(cls):
            raise JobGraphError(f"{cls.__name__}({args[0]!r}): {cls._instead}")
        if (args or named) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")  # as Python says of a class without a constructor
        return super().__new__(cls)


def has_life_cycle(function: Any) -> bool:
    """Whether it is a function object that overrides ``open`` or ``close``."""
    return isinstance(function, Function) and (type(function).open, type(function).close) != (
        Function.open,
        Function.close,
    )


class CheckpointedFunction(ABC):
    """A function with state of its subtask, which belongs to no key; a second base class of any function.

    Both methods run on the task's thread, as the function itself; for a ``SourceFunction``, while its ``run`` does not
    hold the checkpoint lock.
    """

    @abstractmethod
    def snapshot_state(self, context: "FunctionSnapshotContext") -> None:
        """Put into the states what a checkpoint must hold; they are copied when this returns.

        An error fails the job.
        """

    @abstractmethod
    def initialize_state(self, context: "FunctionInitializationContext") -> None:
        """Get the states, with their restored values; called once, before ``open``, at each start of the subtask."""


class CheckpointListener(ABC):
    """A function that is told which checkpoints are complete or have failed; a second base class of any function.

    The methods run on the task's thread.  Numbers rise, and some checkpoints are never reported: a complete checkpoint
    stands for all earlier ones, too.  An error fails the job.
    """

    @abstractmethod
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Handle a complete checkpoint: the job will never go on from an older one."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:  # noqa: B027  # nothing to do unless overridden
        """Handle a checkpoint that will never be complete."""
