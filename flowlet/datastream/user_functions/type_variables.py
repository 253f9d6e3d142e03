"""The types of records in generic base classes, such as ``AsyncFunction[int, str]``.

Side:   pure.
Rules:  a base class without brackets takes any records: for type checkers each variable has the default ``Any``, which
        ``typing`` knows only from Python 3.13 on.
Source: PyFlink ``pyflink.datastream.functions``, where the same classes are generic.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    IN = TypeVar("IN", default=Any)
    IN1 = TypeVar("IN1", default=Any)
    IN2 = TypeVar("IN2", default=Any)
    OUT = TypeVar("OUT", default=Any)
    KEY = TypeVar("KEY", default=Any)
    T = TypeVar("T", default=Any)
    W = TypeVar("W", default=Any)
    W2 = TypeVar("W2", default=Any)
else:
    from typing import TypeVar

    IN, IN1, IN2, OUT, KEY, T, W, W2 = map(TypeVar, ("IN", "IN1", "IN2", "OUT", "KEY", "T", "W", "W2"))

__all__ = ["IN", "IN1", "IN2", "KEY", "OUT", "W2", "T", "W"]
