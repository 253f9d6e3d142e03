"""Ranks in the place of codes."""

import numpy as np
import pytest

from flowlet.columns import NameTable
from flowlet.sorted_input import sort_codes as ranked_codes
from flowlet.sorted_input.sort_codes import RankedCodes, try_unify


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many are enough."""
    monkeypatch.setattr(ranked_codes, "_MIN_ROWS", 4)


def ranked(ranks: list[int], names: str, *, are_texts: bool = True) -> RankedCodes:
    """``names``: the keys of one letter, which are their own codes."""
    table = np.array([name.encode() for name in names])
    return RankedCodes(np.array(ranks, np.uint32), table, NameTable(list(names)) if are_texts else None)


def test_trimmed_codes_are_the_same() -> None:
    """The table has only what lies between the first and the last one."""
    codes = ranked([3, 1, 2, 3], "abcdef")

    trimmed = codes.trimmed()

    assert trimmed.to_bytes_array().tolist() == codes.to_bytes_array().tolist() == [b"d", b"b", b"c", b"d"]
    assert trimmed.names is not None
    assert trimmed.names.names == ["b", "c", "d"]
    assert trimmed.ranks.dtype == np.uint16
    assert trimmed.trimmed() is trimmed


def test_codes_of_different_tables_get_one() -> None:
    """Ranks are those of the common table, and names follow."""
    first, second = ranked([0, 1, 1, 0, 1, 1], "ac"), ranked([1, 0, 0, 1, 1], "bc")

    unified = try_unify([first, second])

    assert unified is not None
    assert [each.to_bytes_array().tolist() for each in unified] == [
        first.to_bytes_array().tolist(),
        second.to_bytes_array().tolist(),
    ]
    assert [each.ranks.tolist() for each in unified] == [[0, 2, 2, 0, 2, 2], [2, 1, 1, 2, 2]]
    assert unified[0].table is unified[1].table
    assert all(each.names is not None and each.names.names == ["a", "b", "c"] for each in unified)


def test_names_need_those_of_all() -> None:
    """One part without names leaves none."""
    unified = try_unify([ranked([0] * 4, "a"), ranked([0] * 4, "b", are_texts=False)])
    assert unified is not None
    assert [each.names for each in unified] == [None, None]


def test_codes_that_hardly_repeat_are_not_unified() -> None:
    """Then the codes themselves are as good."""
    assert try_unify([ranked([0, 1, 2], "abc"), ranked([0, 1, 2], "bcd")]) is None


def test_one_table_stays() -> None:
    """The blocks of a run share theirs, whatever it has."""
    codes = ranked([0, 1, 2], "abc")
    assert try_unify([codes[0:1], codes[1:3]]) is not None
