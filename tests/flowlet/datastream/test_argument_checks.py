"""Promises of ``checked_function``."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from flowlet.datastream import FilterFunction, FlatMapFunction, MapFunction, ReduceFunction
from flowlet.datastream.user_functions.argument_checks import checked_function
from flowlet.errors import JobGraphError


class Double(MapFunction):
    def map(self, value: int) -> int:
        return 2 * value


class Even(FilterFunction):
    def filter(self, value: int) -> bool:
        return value % 2 == 0


class Callable1:
    def __call__(self, value: int) -> int:
        return value


class AsyncCallable:
    async def __call__(self, value: int) -> int:
        return value


async def coroutine(value: int) -> int:
    return value


@pytest.mark.parametrize(
    "func",
    [
        Double(),
        len,
        str.split,
        lambda value: value,
        lambda *values: values,
        lambda value, more=1: value,
        functools.partial(max, 3),
        Callable1(),
        int,
    ],
)
def test_whatever_takes_one_record_is_accepted_as_it_is(func: Any) -> None:
    assert checked_function(func, MapFunction, "map", 1) is func


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (7, r"map\(\) needs a callable or a MapFunction, got 7 of type int"),
        (None, "got None of type NoneType"),
        (Even(), "needs a callable or a MapFunction"),
        (Double, r"got the class Double; write Double\(\)"),
        (Even, r"got the class Even; write Even\(\)"),
        (coroutine, "the coroutine function coroutine; write it with def"),
        (AsyncCallable(), "the coroutine function"),
        (lambda: 1, r"map\(\) calls its function with one record, but .*<lambda>\(\) does not take that: too many"),
        (lambda a, b: a, r"<lambda>\(a, b\) does not take that: missing a required argument: 'b'"),
        (lambda *, value: value, "does not take that"),
    ],
)
def test_whatever_cannot_take_one_record_is_refused(func: Any, message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        checked_function(func, MapFunction, "map", 1)


def test_only_flat_map_takes_a_generator_function() -> None:
    def each(value: str) -> Iterator[str]:
        yield from value

    assert checked_function(each, FlatMapFunction, "flat_map", 1) is each
    with pytest.raises(JobGraphError, match=r"map\(\) needs one result per call, but .*each is a generator function"):
        checked_function(each, MapFunction, "map", 1)


def test_a_reduce_function_takes_two_records() -> None:
    assert checked_function(max, ReduceFunction, "reduce", 2) is max
    with pytest.raises(JobGraphError, match=r"reduce\(\) calls its function with 2 records, but"):
        checked_function(lambda a: a, ReduceFunction, "reduce", 2)
