from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.fusing.field_selector import field_selected_by


def plain(record: Any) -> Any:
    return record[0]


def documented(pair: tuple[str, int]) -> str:
    """The key: the word."""
    return pair[0]


def with_default(record: Any = 0) -> Any:
    return record[0]


def other_variable(record: Any) -> Any:
    record = (1, 2)
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


def catching(record: Any) -> Any:
    try:
        return record[0]
    except IndexError:
        return ""


class Selector:
    def get_key(self, record: Any) -> Any:
        return record[0]


def closing_over() -> Any:
    index = 0
    return lambda record: record[index]


FIRST = [plain, documented, with_default, lambda r: r[0], lambda pair: pair[0], itemgetter(0), [lambda r: r[0]][0]]
FIELDS: list[tuple[Any, int | str]] = [
    *((selector, 0) for selector in FIRST),
    *((lambda r: r[1], 1), (lambda r: r[300], 300), (lambda r: r["word"], "word"), (lambda r: r["0"], "0"), (lambda r: r[""], "")),
    *((itemgetter(7), 7), (itemgetter("word"), "word")),
]
OTHERS: list[Any] = [
    *(other_variable, many, keyword, two, generator, coroutine, with_statement, catching),
    *(Selector(), Selector().get_key, closing_over()),
    *(lambda r: r[-1], lambda r: r[0][0], lambda r: r[False], lambda r: r[0.0], lambda r: r[0:], lambda r: (r[0],), lambda r: r.word),
    *(lambda r: r[b"0"], lambda r: r[None], lambda r: r[0,], lambda r: r[r], lambda r: -r[0]),
    *(itemgetter(-1), itemgetter(0, 1), itemgetter(False), itemgetter(0.0), itemgetter(None)),
    *(len, str, None, "0", 0, lambda: 0, lambda r: 0),
]


@pytest.mark.parametrize(("selector", "field"), FIELDS)
def test_a_selector_of_one_field_is_recognised(selector: Any, field: int | str) -> None:
    """Whatever its argument is called, and whether or not it has a docstring."""
    found = field_selected_by(selector)

    assert (found, type(found)) == (field, type(field))


@pytest.mark.parametrize("selector", OTHERS)
def test_anything_else_is_not(selector: Any) -> None:
    """Nothing is guessed: who gets None calls the selector."""
    assert field_selected_by(selector) is None


@given(field=st.integers() | st.text() | st.booleans() | st.floats() | st.none())
def test_an_itemgetter_is_recognised_by_the_exact_type_of_its_field(field: Any) -> None:
    """True is not 1 and 1.0 is not 1, although tuples would take some of them."""
    is_field = type(field) is str or (type(field) is int and field >= 0)

    found = field_selected_by(itemgetter(field))

    assert (found, type(found)) == ((field, type(field)) if is_field else (None, type(None)))
