import runpy
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import ArrayColumn, ConstantColumn, number_tuples
from flowlet.columns.number_tuples import try_number_columns
from tests.flowlet.serde.exact import ANY_ATOM, FLOATS, INTS, NESTED, Count, exact

SIZES = (15, 30, 31, 45, 59, 60, 61, 62, 63)
BY_SIZE = [st.integers(2**bits, 2 ** (bits + 1)) | st.integers(-(2 ** (bits + 1)), -(2**bits)) for bits in SIZES]
NUMBERS = [INTS, FLOATS, st.integers(-(2**31), 2**31 - 1), st.integers(2**31, 2**45 - 1), st.just(7), *BY_SIZE]


def tuples_of(kinds: list[st.SearchStrategy[Any]], *, max_size: int = 80) -> st.SearchStrategy[list[Any]]:
    shapes = st.lists(st.sampled_from(kinds), min_size=1, max_size=3)
    return shapes.flatmap(lambda shape: st.lists(st.tuples(*shape), min_size=1, max_size=max_size))


@given(tuples_of(NUMBERS) | tuples_of([*NUMBERS, st.booleans(), ANY_ATOM]) | st.lists(NESTED, min_size=1, max_size=5))
def test_columns_stand_for_exactly_the_tuples(records: list[Any]) -> None:
    """Columns keep types, signs and bits; any other records are refused."""
    columns = try_number_columns(records)

    is_known = all(
        type(record) is tuple and record and all(type(value) in (int, float) for value in record) for record in records
    )
    if columns is not None:
        assert is_known
        assert exact(list(zip(*[column.to_list() for column in columns], strict=True))) == exact(records)


NEIGHBOURS = [
    (5, 6),
    (-(2**31), -(2**31) + 1),
    (2**31 - 1, 2**31 - 2),
    (2**31, 2**45 - 1),
    (-(2**44), -(2**44) - 7),
    (2**45, 2**60 - 1),
]


@pytest.mark.parametrize("num_records", [1, 2, 31, 32, 33, 64, 1_000])
@pytest.mark.parametrize("pair", [*NEIGHBOURS, (-(2**59), -(2**60) + 1), (0.5, -0.0)], ids=str)
def test_numbers_of_one_size_are_arrays(num_records: int, pair: tuple[float, float]) -> None:
    """Numbers may have 32 bits, or so many pieces of 15, beside others."""
    records = [(number, pair[number % 2], 3) for number in range(num_records)]

    columns = try_number_columns(records)

    assert columns is not None
    assert exact(list(zip(*[column.to_list() for column in columns], strict=True))) == exact(records)
    assert isinstance(columns[2], ConstantColumn)
    if num_records > 1:
        assert isinstance(columns[0], ArrayColumn)
        assert isinstance(columns[1], ArrayColumn)
        assert columns[1].array.dtype == (np.float64 if type(pair[0]) is float else np.int64)


ODD: list[Any] = [
    (1, True),
    (1, 1.0),
    (1, None),
    (1, "1"),
    (1, 2**40),
    (1, 2**63),
    (1,),
    (1, 2, 3),
    [1, 2],
    (1, Count(2)),
    (1, np.int64(2)),
]


@pytest.mark.parametrize(
    "odd", [*(pytest.param(odd, id=repr(odd)) for odd in ODD), pytest.param((1, object()), id="object")]
)
@pytest.mark.parametrize("place", [0, 1, 40, 99])
def test_one_odd_record_is_enough_to_refuse(odd: Any, place: int) -> None:
    """The odd record may be anywhere."""
    records: list[Any] = [(number, number) for number in range(100)]
    records[place] = odd

    assert try_number_columns(records) is None


def test_values_that_look_like_tags_are_values() -> None:
    """The bytes of a number may be those of the head of a tuple."""
    head = int.from_bytes(b"(\x02\0\0", "little")
    records = [(head, ord("i")), (ord("i"), head)] * 20

    columns = try_number_columns(records)

    assert columns is not None
    assert list(zip(*[column.to_list() for column in columns], strict=True)) == records


def test_an_interpreter_with_another_format_reads_nothing_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does not promise marshal's format: it is read where it is known."""
    records = [(number, number) for number in range(1_000)]
    assert try_number_columns(records) is not None, "the format of this interpreter is known"

    monkeypatch.setattr(sys, "version_info", (3, 99, 0))

    assert runpy.run_path(number_tuples.__file__)["try_number_columns"](records) is None
