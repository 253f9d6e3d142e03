"""Functions of the jobs beside and under attack: TaskManagers import this module, so it imports little.

Side:   task.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from flowlet.datastream import AsyncFunction


def first_of(record: Any) -> Any:
    return record[0]


def with_one(number: int) -> tuple[int, int]:
    return number % 7, 1


def as_it_is(record: Any) -> Any:
    return record


class Awaits(AsyncFunction):
    def __init__(self, function: Callable[[Any], Awaitable[Any]]) -> None:
        self._function = function

    async def async_invoke(self, value: Any) -> list[Any]:
        return [await self._function(value)]
