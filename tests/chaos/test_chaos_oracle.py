"""The oracle finds every result that was lost, repeated, swapped or changed."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.chaos.chaos_generator import Result, Scale, expected
from tests.chaos.chaos_oracle import judge

SCALE = Scale(7, num_records=600, num_rules=5)


def right_results() -> list[Result]:
    results: list[Result] = []
    for (source, key), numbers in expected(SCALE).sequences.items():
        results += [("record", source, key, number, 0, 0, 0) for number in numbers]
    results += [each for each, count in expected(SCALE).windows.items() for _ in range(count)]
    for key, total in expected(SCALE).totals.items():
        results += [total, ("flush", key, 1, 0, 0, 0, 0), ("flush", key, total[2] - 1, 0, 0, 0, 0)]
    return results


def at_random(results: list[Result], kind: str) -> int:
    return random.Random(1).choice([place for place, each in enumerate(results) if each[0] == kind])


def lose(results: list[Result], kind: str) -> None:
    del results[at_random(results, kind)]


def repeat(results: list[Result], kind: str) -> None:
    place = at_random(results, kind)
    results.insert(place, results[place])


def swap(results: list[Result], kind: str) -> None:
    place = next(at for at, (one, other) in enumerate(pairwise(results)) if one[:3] == other[:3])
    results[place], results[place + 1] = results[place + 1], results[place]


def change(results: list[Result], kind: str) -> None:
    place = at_random(results, kind)
    name, first, second, *rest = results[place]
    results[place] = (name, first, second + 1, *rest)  # type: ignore[assignment]  # as many as before


def test_right_results_are_right_in_any_order_of_the_keys() -> None:
    results = right_results()
    results.sort(key=lambda each: (each[2], each[0], each[1], each[3]))

    assert judge(SCALE, results).is_right


@pytest.mark.parametrize(
    ("fault", "kind", "counted"),
    [
        (lose, "record", "lost"),
        (lose, "window", "lost"),
        (lose, "total", "lost"),
        (lose, "flush", "wrong"),
        (repeat, "record", "duplicated"),
        (repeat, "window", "duplicated"),
        (repeat, "total", "duplicated"),
        (repeat, "flush", "wrong"),
        (swap, "record", "out_of_order"),
        (change, "window", "wrong"),
        (change, "total", "wrong"),
        (change, "flush", "wrong"),
    ],
)
def test_one_fault_is_found(fault: Callable[[list[Result], str], None], kind: str, counted: str) -> None:
    results = right_results()
    fault(results, kind)

    verdict = judge(SCALE, results)

    assert not verdict.is_right
    assert getattr(verdict, counted) >= 1
    assert verdict.samples


def test_a_record_that_nobody_generated_is_found() -> None:
    verdict = judge(SCALE, [*right_results(), ("record", 0, 3, 999_999, 0, 0, 0)])

    assert (verdict.wrong, verdict.lost) == (1, 0)
