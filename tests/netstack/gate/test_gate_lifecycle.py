"""``GateLifecycle``: every pair of states."""

from itertools import product

from netstack.gate.gate_lifecycle import NEXT, GateLifecycle


def test_a_gate_only_moves_on() -> None:
    """From each state to the later ones, and nowhere from the last."""
    order = [GateLifecycle.SET_UP, GateLifecycle.REQUESTED, GateLifecycle.CLOSED]

    steps = {(before, after) for before, after in product(order, order) if after in NEXT[before]}

    assert list(GateLifecycle) == order
    assert steps == {(before, after) for before, after in product(order, order) if order.index(before) < order.index(after)}
