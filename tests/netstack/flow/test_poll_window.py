"""When a loop that got data goes on looking."""

from netstack.busy_poll import PollWindow


def test_it_is_open_for_its_length_after_the_last_news() -> None:
    window = PollWindow(100)
    assert not window.is_open(0), "nothing came yet"

    window.news(1000)
    window.news(1050)

    assert window.is_open(1050)
    assert window.is_open(1149)
    assert not window.is_open(1150)


def test_while_it_is_held_no_news_open_it() -> None:
    window = PollWindow(100)
    window.news(1000)

    window.hold(is_held=True)
    window.news(1010)

    assert not window.is_open(1020)


def test_after_a_hold_it_opens_with_the_next_news() -> None:
    window = PollWindow(100)
    window.news(1000)
    window.hold(is_held=True)

    window.hold(is_held=False)

    assert not window.is_open(1010), "what came before is old"
    window.news(1020)
    assert window.is_open(1020)


def test_saying_again_that_nobody_holds_it_changes_nothing() -> None:
    """It is said some times per second."""
    window = PollWindow(100)
    window.news(1000)

    window.hold(is_held=False)

    assert window.is_open(1010)
