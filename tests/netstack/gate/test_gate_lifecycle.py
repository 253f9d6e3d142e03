"""``GateLifecycle``: every pair of states."""

from itertools import product

from netstack.gate.gate_channels import GateLifecycle
from netstack.gate.single_input_gate import SingleInputGate


def test_a_gate_only_moves_on() -> None:
    """From each state to the later ones, and nowhere from the last."""
    order = [GateLifecycle.SET_UP, GateLifecycle.REQUESTED, GateLifecycle.CLOSED]

    steps = {(before, after) for before, after in product(order, order) if after > before}

    assert list(GateLifecycle) == order
    assert steps == {
        (before, after) for before, after in product(order, order) if order.index(before) < order.index(after)
    }


def test_a_gate_that_was_closed_before_its_request_is_not_finished() -> None:
    """Nothing reached its end; a reader that took it for finished would report a complete input."""
    gate = SingleInputGate("task")
    assert not gate.is_finished

    gate.close()

    assert not gate.is_finished


def test_a_requested_gate_without_channels_is_finished() -> None:
    """As Flink's: there is nothing to wait for."""
    gate = SingleInputGate("task")

    gate.request_partitions()

    assert gate.is_finished
    gate.close()
