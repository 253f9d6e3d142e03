"""Values by slot, whatever they are and whether or not they are replaced."""

import numpy as np
import pytest

from flowlet.columns import ListColumn
from flowlet.kernels.grouping import FieldStore, ObjectStore, ReplacedObjectStore


@pytest.mark.parametrize("make", [ObjectStore, ReplacedObjectStore])
def test_objects_are_taken_and_replaced_by_their_slots(make: type[ObjectStore | ReplacedObjectStore]) -> None:
    empty: FieldStore = make()
    store = empty.append(ListColumn(["a", 1, None]))
    either = store.take_either(ListColumn(["new"]), np.array([2, 0]), np.array([2, 0, 1]))
    taken = store.take(np.array([1, 1, 0]))

    replaced = store.replace(np.array([1]), ListColumn([True]))

    assert either.to_list() == ["a", "new", None]
    assert taken.to_list() == [1, 1, "a"]
    assert replaced.column().to_list() == ["a", True, None]
    assert type(replaced.column().to_list()[1]) is bool
