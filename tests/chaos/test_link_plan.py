"""An armed fault happens once, at its frame and byte, in its direction; everything else passes."""

import pytest

from tests.chaos.frame_finder import Part
from tests.chaos.link_plan import Direction, End, LinkFault, LinkFaultKind, LinkPlan, Order, Send, Wait

DATA = bytes(range(10))


def passed(orders: list[Order]) -> bytes:
    return b"".join(order.data for order in orders if isinstance(order, Send))


def armed(
    kind: LinkFaultKind, *, direction: Direction = "to client", frame: int = 0, byte: int = 0, seconds: float = 0.0
) -> LinkPlan:
    plan = LinkPlan()
    plan.arm(LinkFault(kind, direction, frame, byte, seconds))
    return plan


def test_without_a_fault_everything_passes() -> None:
    assert LinkPlan().orders("to server", Part(DATA, 0), 0.0) == [Send(DATA)]


@pytest.mark.parametrize(("kind", "is_reset"), [(LinkFaultKind.CUT, False), (LinkFaultKind.RESET, True)])
def test_a_connection_is_cut_at_byte_n_of_frame_k(kind: LinkFaultKind, is_reset: bool) -> None:
    plan = armed(kind, frame=1, byte=7)

    before = plan.orders("to client", Part(DATA, 0), 1.0)
    first = plan.orders("to client", Part(DATA[:5], 0), 1.0)
    second = plan.orders("to client", Part(DATA[5:], 5), 2.0)

    assert before == [Send(DATA)]
    assert first == [Send(DATA[:5])]
    assert second == [Send(DATA[5:7]), End(is_reset)]
    assert [at_s for _, at_s in plan.fired] == [2.0]


def test_frames_of_the_other_direction_and_idle_ones_do_not_count() -> None:
    plan = armed(LinkFaultKind.CUT)

    assert plan.orders("to server", Part(DATA, 0), 0.0) == [Send(DATA)]
    assert plan.orders("to client", Part(DATA, 0, is_work=False), 0.0) == [Send(DATA)]
    assert plan.fired == []


def test_a_frame_that_is_too_short_for_the_byte_leaves_the_fault_to_the_next_one() -> None:
    plan = armed(LinkFaultKind.FLIP, byte=500)

    first, second = plan.orders("to client", Part(DATA, 0), 0.0), plan.orders("to client", Part(DATA, 0), 0.0)

    assert first == [Send(DATA)]
    assert passed(second)[:-1] == DATA[:-1]
    assert passed(second)[-1] == DATA[-1] ^ 4


def test_one_bit_flips_once() -> None:
    plan = armed(LinkFaultKind.FLIP, byte=3)

    flipped, after = plan.orders("to client", Part(DATA, 0), 0.0), plan.orders("to client", Part(DATA, 0), 0.0)

    assert [at for at, (one, other) in enumerate(zip(passed(flipped), DATA, strict=True)) if one != other] == [3]
    assert after == [Send(DATA)]


def test_some_bytes_come_twice() -> None:
    orders = armed(LinkFaultKind.DUPLICATE, byte=6).orders("to client", Part(DATA, 0), 0.0)

    assert passed(orders) == DATA[:7] + DATA[3:]


def test_one_direction_stands_still_for_a_time() -> None:
    plan = armed(LinkFaultKind.HOLD, seconds=2.0)

    assert plan.orders("to client", Part(DATA, 0), 10.0) == [Wait(2.0), Send(DATA)]
    assert plan.orders("to client", Part(DATA, 0), 11.5) == [Wait(0.5), Send(DATA)]
    assert plan.orders("to server", Part(DATA, 0), 11.5) == [Send(DATA)]
    assert plan.orders("to client", Part(DATA, 0), 12.0) == [Send(DATA)]


def test_a_slow_link_delays_each_piece() -> None:
    plan = armed(LinkFaultKind.DELAY, seconds=1.0)

    assert plan.orders("to client", Part(DATA, 0), 0.0) == [Wait(0.1), Send(DATA)]
    assert plan.orders("to client", Part(DATA, 0), 0.5) == [Wait(0.1), Send(DATA)]
    assert plan.orders("to client", Part(DATA, 0), 1.0) == [Send(DATA)]
