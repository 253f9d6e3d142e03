"""The ``Lifecycle`` of a gate."""

from netstack.gate.single_input_gate import SingleInputGate


def test_a_gate_that_was_closed_before_its_request_is_not_finished() -> None:
    """A gate that never read to an end is not finished: its reader would report a complete input."""
    gate = SingleInputGate("task")
    assert not gate.is_finished

    gate.close()

    assert not gate.is_finished


def test_a_requested_gate_without_channels_is_finished() -> None:
    """A gate has no input to wait for without channels; Flink's gate is finished then, too."""
    gate = SingleInputGate("task")

    gate.request_partitions()

    assert gate.is_finished
    gate.close()
