"""Values by slot, whatever they are and whether or not they are replaced."""

import numpy as np
import pytest

from flowlet.columns import ArrayColumn, Column, ListColumn
from flowlet.kernels.grouping import FieldStore

OBJECTS = ListColumn(["a", 1, None])
NUMBERS = ArrayColumn(np.array([3, 4, 5]))


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("column", [OBJECTS, NUMBERS], ids=["objects", "numbers"])
def test_values_are_taken_by_their_slots(column: Column, *, is_replaced: bool) -> None:
    """The values may be beside others of any type."""
    first, second, third = column.to_list()
    store = FieldStore(column, is_replaced=is_replaced)
    store.append(column)

    either = store.take_either(ListColumn(["new"]), np.array([2, 0]), np.array([2, 0, 1]))
    taken = store.take(np.array([1, 1, 0]))
    store.append(ListColumn([True]))

    assert either.to_list() == [first, "new", third]
    assert taken.to_list() == [second, second, first]
    assert store.column().to_list() == [first, second, third, True]
    assert type(store.column().to_list()[3]) is bool


@pytest.mark.parametrize("column", [OBJECTS, NUMBERS], ids=["objects", "numbers"])
def test_values_are_replaced_by_their_slots(column: Column) -> None:
    """Values that were taken before a replacement stay the old ones."""
    first, second, third = column.to_list()
    store = FieldStore(column, is_replaced=True)
    store.append(column)
    taken = store.take(np.array([1, 1, 0]))

    store.replace(np.array([1]), ListColumn([True]))

    assert taken.to_list() == [second, second, first]
    assert store.column().to_list() == [first, True, third]
    assert type(store.column().to_list()[1]) is bool
