"""The ``Lifecycle`` of a gate."""

from netstack.gate.single_input_gate import SingleInputGate


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
