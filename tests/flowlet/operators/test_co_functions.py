"""Source: Flink ``CoStreamMapTest``, ``CoStreamFlatMapTest``, ``DirectedOutputTest``."""

from typing import Any

import pytest

from flowlet.datastream import CoFlatMapFunction, CoMapFunction
from flowlet.errors import UserFunctionError
from flowlet.graph.transformation import selection_tag
from flowlet.operators.co_functions import CoFlatMapOperator, CoMapOperator, SplitOperator
from tests.flowlet.operators.harness import Harness


class Mapper(CoMapFunction):
    def map1(self, value: int) -> str:
        return f"{value:d}"

    def map2(self, value: str) -> str:
        return value.upper()


class Splitter(CoFlatMapFunction):
    def flat_map1(self, value: str) -> list[str]:
        return value.split()

    def flat_map2(self, value: Any) -> None:
        return None


def test_each_input_is_mapped_by_its_own_method() -> None:
    harness = Harness(CoMapOperator(Mapper()))

    harness.process_input(1, 1, 2, timestamps=[5, 6])
    harness.process_input(2, "a")

    assert harness.output.values == ["1", "2", "A"]
    assert harness.output.timestamps == [5, 6, None]


class OnlyEven(CoMapFunction):
    def map1(self, value: int) -> int | None:
        return value if value % 2 == 0 else None

    def map2(self, value: str) -> None:
        return None


def test_where_map_gives_none_nothing_is_emitted() -> None:
    """A result of None emits no record, as in PyFlink's adapter; 0 is not None."""
    harness = Harness(CoMapOperator(OnlyEven()))

    harness.process_input(1, 0, 1, 2, 3, timestamps=[5, 6, 7, 8])
    harness.process_input(2, "a")

    assert harness.output.values == [0, 2]
    assert harness.output.timestamps == [5, 7]


def test_flat_map_of_two_inputs_keeps_timestamps_and_emits_nothing_for_none() -> None:
    harness = Harness(CoFlatMapOperator(Splitter()))

    harness.process_input(1, "a b", "", "c", timestamps=[1, 2, 3])
    harness.process_input(2, "x")

    assert harness.output.values == ["a", "b", "c"]
    assert harness.output.timestamps == [1, 1, 3]


@pytest.mark.parametrize(("number", "records", "preview"), [(1, [1, "x"], "'x'"), (2, ["a", 5], "5")])
def test_a_failure_names_the_record(number: int, records: list[Any], preview: str) -> None:
    harness = Harness(CoMapOperator(Mapper()))

    with pytest.raises(UserFunctionError, match=preview):
        harness.process_input(number, *records)


EVEN, SMALL, EITHER = frozenset({"even"}), frozenset({"small"}), frozenset({"even", "small"})


def names_of(value: int) -> list[str]:
    return [name for name, holds in (("even", value % 2 == 0), ("small", value < 3)) if holds]


def test_each_record_reaches_exactly_the_selections_that_ask_for_it_once() -> None:
    harness = Harness(SplitOperator(names_of, [EVEN, SMALL, EITHER]))

    harness.process(1, 2, 3, 4)

    assert harness.output.sides == {
        selection_tag(EVEN): [2, 4],
        selection_tag(SMALL): [1, 2],
        selection_tag(EITHER): [1, 2, 4],
    }
    assert harness.output.values == [1, 2, 3, 4]


def test_a_selector_that_returns_a_text_is_told_so() -> None:
    harness = Harness(SplitOperator(lambda value: "even", [EVEN]))

    with pytest.raises(UserFunctionError) as caught:
        harness.process(1)

    assert "returns a collection of names" in str(caught.value.__cause__)
