"""NEXMark's events have the proportions and the references of the published benchmark."""

from bench.jobs.nexmark_events import FIRST_ID, Auction, Bid, Event, Person, as_text, event, nested_event

EVENTS = [event(number) for number in range(5_000)]


def of(kind: type[Event]) -> list[Event]:
    return [each for each in EVENTS if isinstance(each, kind)]


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_others_bids() -> None:
    assert (len(of(Person)), len(of(Auction)), len(of(Bid))) == (100, 300, 4600)
    assert [each.kind for each in EVENTS[50:55]] == ["person", "auction", "auction", "auction", "bid"]


def test_ids_count_up_and_whoever_is_named_has_come_before() -> None:
    people: set[int] = set()
    auctions: set[int] = set()
    for each in EVENTS:
        match each:
            case Person():
                assert each.id == FIRST_ID + len(people)
                people.add(each.id)
            case Auction():
                assert each.id == FIRST_ID + len(auctions)
                assert each.seller in people
                auctions.add(each.id)
            case Bid():
                assert each.auction in auctions
                assert each.bidder in people


def test_time_goes_on_by_a_millisecond_per_ten_events() -> None:
    assert [each.date_time - EVENTS[0].date_time for each in EVENTS[::1000]] == [0, 100, 200, 300, 400]


def test_half_of_the_bids_are_on_a_hot_auction() -> None:
    hot = [each for each in EVENTS if isinstance(each, Bid) and (each.auction - FIRST_ID) % 100 == 0]

    assert 0.45 < len(hot) / len(of(Bid)) < 0.6


def test_the_nested_form_has_the_same_values() -> None:
    for number in (0, 1, 4):
        nested, flat = nested_event(number), event(number)

        assert nested["kind"] == flat.kind
        assert nested["at"] == {"ms": flat.date_time}
        assert nested[flat.kind] == vars(flat)


def test_a_line_for_java_has_the_kind_and_every_field_between_tabs() -> None:
    assert all(as_text(each).split("\t") == [each.kind, *map(str, vars(each).values())] for each in EVENTS[:200])
