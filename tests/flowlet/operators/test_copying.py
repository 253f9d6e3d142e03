"""Source: Flink ``TypeSerializer.copy``."""

import threading
from typing import Any

import pytest

from flowlet.errors import FlowletError
from flowlet.operators.keyed_aggregation_operator import copy_values


@pytest.mark.parametrize("values", [["a", "b"], [1, 2.5, None], [("a", 1), ("b", (2, 3))], [b"x"], [frozenset({1})]])
def test_values_that_cannot_change_are_shared(values: list[Any]) -> None:
    """In a list of their own."""
    copied = copy_values(values)

    assert copied == values
    assert copied is not values
    assert all(copy is value for copy, value in zip(copied, values, strict=True))


@pytest.mark.parametrize("value", [[1], {"a": [1]}, (1, [2]), {1}])
def test_other_values_are_copied_to_the_bottom(value: Any) -> None:
    shared = ("a", 1)

    copied = copy_values([shared, value])

    assert copied == [shared, value]
    assert copied[0] is shared
    assert copied[1] is not value


def test_a_list_inside_a_tuple_is_copied_too() -> None:
    inner = [1]

    copied = copy_values([("a", inner)])
    inner.append(2)

    assert copied == [("a", [1])]


def test_a_value_that_cannot_be_copied_is_shown_with_a_way_out() -> None:
    with pytest.raises(
        FlowletError,
        match=r"^<unlocked .*> cannot be copied into a snapshot \(TypeError: .*\); make its type copyable$",
    ):
        copy_values([threading.Lock()])
