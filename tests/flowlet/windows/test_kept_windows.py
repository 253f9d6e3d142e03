"""The content of windows, and the moments at which it is written to the state: inside of the operator."""

from collections.abc import Callable
from typing import Any

import pytest

from flowlet.chain.loop_code import RecordLoop
from flowlet.common import Time
from flowlet.datastream.window import EventTimeTrigger, SlidingEventTimeWindows
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.errors import UserFunctionError
from flowlet.state.heap_states import HeapValueState
from flowlet.windows import aligned_windows
from flowlet.windows.window_operator import WindowOperator
from tests.flowlet.windows.opened_windows import Listing, Opened, entries_of, sessions, summed, tumbling


@pytest.mark.parametrize(
    ("timestamps", "num_writes"),
    [([10, 10, 10, 10], 1), ([10, 12, 14, 11, 13], 3), ([10, 30, 50, 30, 10], 3), ([10, 10, 18, 14, 2], 3)],
)
def test_the_set_of_sessions_is_written_when_it_changed(
    opened: Opened, timestamps: list[int], num_writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record within a session writes nothing, as do all records of a source whose records share timestamps."""
    written: list[Any] = []
    update = HeapValueState.update

    def noted(state: HeapValueState, value: Any) -> None:
        if "merging-window-set" in repr(state):
            written.append(value)
        update(state, value)

    monkeypatch.setattr(HeapValueState, "update", noted)
    harness = opened(sessions(10, combine=summed))

    harness.process_chunk([("a", 1)] * len(timestamps), timestamps)
    assert len(written) == num_writes
    harness.process_watermark(1000)

    assert sum(value[1] for value in harness.values) == len(timestamps)
    assert entries_of(harness, "merging-window-set") == []


def sizes_at_each_write(
    monkeypatch: pytest.MonkeyPatch, size_of: Callable[[aligned_windows.AlignedWindowing], int]
) -> list[int]:
    """Return the sizes, so far, of what was kept whenever it was written; 20 is too much."""
    sizes: list[int] = []
    write_all = aligned_windows.AlignedWindowing.write_all

    def counted(aligned: aligned_windows.AlignedWindowing) -> None:
        sizes.append(size_of(aligned))
        write_all(aligned)

    monkeypatch.setattr(aligned_windows, "_MAX_KEPT", 20)
    monkeypatch.setattr(aligned_windows.AlignedWindowing, "write_all", counted)
    return sizes


@pytest.mark.parametrize("spec", [{"combine": summed}, {"function": Listing()}])
def test_a_large_chunk_is_written_to_the_state_on_the_way(
    opened: Opened, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is written on the way: a record may be in many windows, and a batch of columns may be large."""
    sizes = sizes_at_each_write(monkeypatch, lambda aligned: aligned.num_kept)
    assigner = SlidingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(2))
    harness = opened(WindowSpec(assigner, EventTimeTrigger(), **spec))

    harness.process_chunk([(key, 1) for key in range(100)], [0] * 100)
    harness.process_watermark(100)

    assert len(sizes) > 1
    assert max(sizes) <= 40
    assert len(harness.values) == 500


def test_an_error_in_a_large_chunk_names_its_record(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces of a chunk share its position."""
    monkeypatch.setattr(aligned_windows, "_MAX_KEPT", 2)
    harness = opened(tumbling(combine=summed))

    with pytest.raises(UserFunctionError, match=r"'a', None"):
        harness.process_chunk([("a", 1), ("b", 1), ("c", 1), ("a", 1), ("a", None), ("a", 3)], [1] * 6)


@pytest.mark.parametrize("is_chained", [False, True])
def test_lists_of_few_windows_are_written_to_the_state_on_the_way(
    opened: Opened, is_chained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is not written for first records of windows alone: one list may grow for as long as a loop runs."""
    sizes = sizes_at_each_write(monkeypatch, lambda aligned: aligned.num_kept)
    harness = opened(tumbling(function=Listing()))
    records, timestamps = [("a", number) for number in range(100)], [1] * 100
    if is_chained:
        operator = harness.operator
        assert isinstance(operator, WindowOperator)
        RecordLoop("test", operator.write_record, operator.output.loop_ends).run(records, timestamps, 100)
    else:
        harness.process_chunk(records, timestamps)
    harness.process_watermark(100)

    assert sizes == [20] * 5
    assert harness.values[0][2] == list(range(100))
