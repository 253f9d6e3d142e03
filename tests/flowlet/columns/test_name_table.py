"""``NameTable``: the names that codes stand for, while names come in."""

import numpy as np

from flowlet.columns import NameTable


def test_codes_stand_for_their_names_however_the_names_came() -> None:
    table = NameTable(["a"])

    found = []
    for names in (["b", ("tuple", 1)], [], [None, ["list"]], [f"n{number}" for number in range(40)]):
        table.names += names
        found.append(table.values_of(np.arange(len(table), dtype=np.uint32)))

    assert found == [table.names[:3], table.names[:3], table.names[:5], table.names]
    assert found[-1][4] is table.names[4]


def test_names_that_come_one_by_one_are_not_copied_each_time() -> None:
    """A copy of all names per chunk cost more than everything else with a million keys and a few new ones in each
    chunk.
    """
    table = NameTable()
    arrays = set()

    kept = []
    for number in range(5_000):
        table.names.append(number)
        assert table.values_of(np.array([number, 0], np.uint32)) == [number, 0]
        kept.append(table._objects[0])  # so that no two have one address
        arrays.add(id(kept[-1]))

    assert len(arrays) <= 14
