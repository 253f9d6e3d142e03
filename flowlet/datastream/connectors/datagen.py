"""``DataGeneratorSource``: records that a function makes of the numbers from 0 on, at a rate.

Side:   pure.
Source: Flink ``DataGeneratorSource``, ``GeneratorFunction``, ``RateLimiterStrategy``, which PyFlink lacks, with names
        in the style of Python.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, final

from flowlet.common.checks import check_kind, check_number
from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream.connectors.base import BuiltInSource
from flowlet.errors import JobGraphError

__all__ = ["DataGeneratorSource", "RateLimiterStrategy", "RateUnit"]


class RateUnit(Enum):
    """The unit of a rate: records per second or per checkpoint; ``NONE``: there is no limit."""

    NONE = "nothing"
    SECOND = "second"
    CHECKPOINT = "checkpoint"


@final
class RateLimiterStrategy:
    """How fast a generator may be, all its subtasks together; each gets an equal share."""

    __slots__ = ("records", "unit")

    def __init__(self, unit: RateUnit, records: float) -> None:
        self.unit = unit
        self.records = records

    def __repr__(self) -> str:
        return (
            "RateLimiterStrategy.no_op()"
            if self.unit is RateUnit.NONE
            else f"RateLimiterStrategy({self.records:g} per {self.unit.value})"
        )

    @staticmethod
    def per_second(records_per_second: float) -> "RateLimiterStrategy":
        """A limit of so many records a second; records that were not given in a second may be given in the next one.

        Raises:
            JobGraphError: the number is not above 0.
        """
        if type(records_per_second) not in (int, float) or not records_per_second > 0:
            raise JobGraphError(f"per_second() needs a number of records above 0, got {records_per_second!r}")
        return RateLimiterStrategy(RateUnit.SECOND, float(records_per_second))

    @staticmethod
    def per_checkpoint(records_per_checkpoint: int) -> "RateLimiterStrategy":
        """A limit of so many records between two checkpoints, at least one per subtask; for tests.

        Raises:
            JobGraphError: the number is not above 0.
        """
        check_number(records_per_checkpoint, 1, "per_checkpoint() needs a whole number of records above 0")
        return RateLimiterStrategy(RateUnit.CHECKPOINT, records_per_checkpoint)

    @staticmethod
    def no_op() -> "RateLimiterStrategy":
        """No limit: records come as fast as the job takes them."""
        return RateLimiterStrategy(RateUnit.NONE, 0)


class DataGeneratorSource(BuiltInSource):
    """A source of ``generator_function(n)`` for each ``n`` of 0, 1, ... ``count`` - 1.

    Subtasks get splits of the numbers when they ask for more, as of a ``NumberSequenceSource``.  The numbers that are
    left belong to checkpoints: if the function always makes equal records of a number, they can be replayed exactly,
    also with another parallelism.

    Args:
        generator_function: of a number; it travels with the job.
        count: how many records; the source ends after them.
        rate_limiter_strategy: how fast; None: as fast as the job takes them.
        type_info: of the records, unless ``from_source`` says it.

    Raises:
        JobGraphError: an argument is not of its kind.
    """

    __slots__ = ("count", "generator_function", "rate_limiter_strategy", "type_info")

    def __init__(
        self,
        generator_function: Callable[[int], Any],
        count: int,
        rate_limiter_strategy: RateLimiterStrategy | None = None,
        type_info: TypeInformation | None = None,
    ) -> None:
        if not callable(generator_function):
            raise JobGraphError(f"a data generator needs a function of a number, got {generator_function!r}")
        if type(count) is not int or not 1 <= count < 1 << 63:
            raise JobGraphError(f"a data generator needs a number of records above 0, of 64 bits, got {count!r}")
        needs = "a data generator needs a rate such as RateLimiterStrategy.per_second(100)"
        check_kind(rate_limiter_strategy, RateLimiterStrategy | None, needs)
        check_kind(type_info, TypeInformation | None, "a data generator needs a type such as Types.LONG()")
        self.generator_function = generator_function
        self.count = count
        self.rate_limiter_strategy = (
            RateLimiterStrategy.no_op() if rate_limiter_strategy is None else rate_limiter_strategy
        )
        self.type_info = type_info
