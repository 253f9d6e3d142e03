"""The page of results has exactly the measured figures."""

import json

from bench.report import Result
from bench.table import markdown, number


def document(name: str, *runs: float, foreign: float = 0.0, case: str = "shuffle") -> dict[str, object]:
    found: dict[str, object] = json.loads(Result(name, "things/s", runs, foreign_cores=[foreign], case=case).to_json())
    return found


def test_every_figure_is_a_line_of_the_table_of_its_case() -> None:
    page = markdown([document("one", 3e6, 1e6, 2e6), document("two", 12.3456, case="idle")])

    assert "## shuffle\n| figure |" in page
    assert "| one | 2 M | 1 M | 3 M | 3 | things/s | 0.00 |" in page
    assert "## idle\n| figure |" in page
    assert "| two | 12.35 | 12.35 | 12.35 | 1 | things/s | 0.00 |" in page


def test_what_was_disturbed_is_marked_and_of_two_with_one_name_the_last_counts() -> None:
    page = markdown([document("one", 1.0), document("one", 2.0, foreign=0.5)])

    assert "| one | 2 | 2 | 2 | 1 | things/s | 0.50 ! |" in page
    assert "| one | 1 |" not in page


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0.12345, 123.456, 45_678.9, 12_345_678)] == [
        "0.1235",
        "123.5",
        "45,679",
        "12.35 M",
    ]


def test_a_peer_has_a_line_in_every_case_that_it_takes_part_in() -> None:
    page = markdown([document("ours", 1.0, case="idle"), document("peer", 2.0, case="idle"), document("peer", 3.0)])

    idle, shuffle = page.split("## ")[1:]
    assert "| peer | 2 |" in idle
    assert "| peer | 3 |" in shuffle
