from operator import itemgetter
from typing import Any

import pytest

from flowlet.operators.key_selection import selects_first_field


def plain(record: Any) -> Any:
    return record[0]


def documented(pair: tuple[str, int]) -> str:
    """The key: the word."""
    return pair[0]


def second(record: Any) -> Any:
    return record[1]


def with_default(record: Any = 0) -> Any:
    return record[0]


def many(*record: Any) -> Any:
    return record[0]


def keyword(*, record: Any = (1,)) -> Any:
    return record[0]


def two(record: Any, other: Any = 0) -> Any:
    return record[0]


def generator(record: Any) -> Any:
    yield record[0]


async def coroutine(record: Any) -> Any:
    return record[0]


def with_statement(record: Any) -> Any:
    print(record)
    return record[0]


class Selector:
    def get_key(self, record: Any) -> Any:
        return record[0]


def closing_over() -> Any:
    index = 0
    return lambda record: record[index]


FIRST = [plain, documented, with_default, lambda r: r[0], lambda pair: pair[0], itemgetter(0), [lambda r: r[0]][0]]
OTHERS: list[Any] = [
    *(second, many, keyword, two, generator, coroutine, with_statement, Selector(), Selector().get_key, closing_over()),
    *(lambda r: r[-1], lambda r: r[0][0], lambda r: r["0"], lambda r: r[False], lambda r: r[0.0], lambda r: r[0:], lambda r: (r[0],)),
    *(itemgetter(1), itemgetter(0, 1), itemgetter(False), itemgetter(0.0), itemgetter("0"), len, str, lambda: 0, lambda r: 0),
]


@pytest.mark.parametrize("selector", FIRST)
def test_a_selector_of_the_first_field_is_recognised(selector: Any) -> None:
    assert selects_first_field(selector)


@pytest.mark.parametrize("selector", OTHERS)
def test_anything_else_is_called(selector: Any) -> None:
    assert not selects_first_field(selector)
