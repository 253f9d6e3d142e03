"""The walks that ``make walks`` draws are walks of real jobs."""

import pytest

from tests.house.walks import (
    PAGE,
    WALKS,
    Call,
    described,
    first_visits,
    stays_of,
    walk_of_a_record,
    walk_of_a_state_access,
)

CALLS = [
    Call("task", "chain", "f"),
    Call("task", "chain", "g"),
    Call("loop", "wire", "encode"),
    Call("task", "chain", "h"),
]


def test_a_stay_is_a_run_of_calls_of_one_thread_in_one_room() -> None:
    stays = stays_of(CALLS)

    assert [(stay.thread, stay.room, stay.entry, stay.functions) for stay in stays] == [
        ("task", "chain", "f", {"f", "g"}),
        ("loop", "wire", "encode", {"encode"}),
        ("task", "chain", "h", {"h"}),
    ]
    assert [(visit.room, visit.functions) for visit in first_visits(stays)] == [
        ("chain", {"f", "g", "h"}),
        ("wire", {"encode"}),
    ]


def test_a_walk_is_drawn_with_its_figures_and_doors() -> None:
    page = described(CALLS).splitlines()

    assert page[0] == "4 calls of 4 functions in 2 rooms, 3 stays."
    assert '  subgraph t0["task"]' in page
    assert "  r0 -->|1| r1" in page
    assert page[-1] == "| 2 | loop | `wire` | `encode` | 1 |"


@pytest.mark.slow
def test_a_record_goes_from_its_source_over_the_network_to_the_state_of_its_key() -> None:
    """The rooms of a record's walk come in their order; other threads may enter any of these rooms at any time."""
    rooms = [stay.room for stay in stays_of(walk_of_a_record())]

    rest = iter(rooms)
    for station in ("connectors", "mailbox", "task", "serde", "netstack/wire", "netstack/gate", "state"):
        assert station in rest, f"the record enters {station} out of its turn: {rooms}"
    assert {call.room for call in walk_of_a_state_access()} == {"state"}


def test_the_page_has_a_place_for_each_walk() -> None:
    page = PAGE.read_text()

    for name in WALKS:
        assert page.index(f"<!-- {name}: drawn by make walks -->") < page.index(f"<!-- end of {name} -->")
