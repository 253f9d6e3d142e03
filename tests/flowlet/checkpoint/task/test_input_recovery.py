"""Data in flight goes in before anything else, exactly as far as its channel is still there."""

from functools import partial

import pytest

from flowlet.chain.record_slices import RecordSlices
from flowlet.checkpoint.task.input_recovery import InputRecovery
from flowlet.checkpoint.task.snapshots import RecoveredStream
from flowlet.errors import StateRestoreError
from flowlet.io.input_processor import InputProcessor
from flowlet.records import ACTIVE, IDLE, Chunk, CompletionMark, LatencyMarker, StreamElement, Watermark
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS
from flowlet.serde.element_serializer import ElementDeserializer
from tests.flowlet.checkpoint.task.test_classes_of_another_program import Program, running
from tests.flowlet.io.head import Head
from tests.flowlet.io.test_input_processor import Rig, send
from tests.flowlet.task.local_network import LocalNetwork
from tests.flowlet.task.local_tasks import serialized

MARKER = LatencyMarker(5, bytes(16), 0)


def recovery(processor: InputProcessor, *streams: RecoveredStream) -> InputRecovery:
    return InputRecovery(list(streams), lambda gate: (processor, gate), "reduce (1/2)", DEFAULT_ELEMENT_LIMITS)


def go_through(work: InputRecovery) -> None:
    assert not work.process(100_000, lambda: False)


def stream(gate: int, channel: int | None, *elements: StreamElement, piece_bytes: int = 7) -> RecoveredStream:
    """Cut anywhere."""
    data = b"".join(map(serialized, elements))
    return RecoveredStream(
        gate, channel, tuple(data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes))
    )


def test_a_channel_that_is_still_there_gets_its_watermarks_back(network: LocalNetwork) -> None:
    """A recovered channel gets its watermarks as if they had just arrived, but is never idle: its producer begins
    active, and tells changes alone.
    """
    rig = Rig(network, 1, 2)
    streams = [
        stream(0, 0, Chunk(["a"]), Watermark(5), MARKER, CompletionMark(3)),
        stream(1, 1, Watermark(9), Chunk(["b"])),
        stream(1, 0, Watermark(7), Chunk(["c"]), IDLE),
    ]

    go_through(recovery(rig.processor, *streams))

    assert rig.head.seen == [Chunk(["a"]), Chunk(["b"]), Watermark(5), Chunk(["c"])]
    send(rig.producers[0], Watermark(20))
    rig.process()
    assert rig.head.seen[-1] == Watermark(7), "the channel that was idle holds the watermark back"


def test_of_a_channel_that_is_no_more_only_the_records_count(network: LocalNetwork) -> None:
    rig = Rig(network, 1)
    recovered = RecoveredStream(
        0, None, stream(0, None, Chunk([1, 2, 3]), Watermark(5), ACTIVE, Chunk([5])).pieces, _even
    )

    go_through(recovery(rig.processor, recovered))

    assert rig.head.seen == [Chunk([2])]


def _even(chunk: Chunk) -> Chunk:
    return Chunk([value for value in chunk.values if value % 2 == 0])


def test_records_of_an_operator_inside_the_chain_go_there(network: LocalNetwork) -> None:
    """Watermarks of that edge do not: it is no more."""
    rig = Rig(network, 1)
    inner: dict[int, list[Chunk]] = {1: [], 2: []}

    def give(index: int, chunk: Chunk) -> int:
        inner[index].append(chunk)
        return len(chunk)

    streams = [
        RecoveredStream(0, None, stream(0, None, Chunk(["k"]), Watermark(5)).pieces, operator=2),
        RecoveredStream(0, None, stream(0, None, Chunk([1, 2]), IDLE).pieces, _even, operator=1),
        stream(0, 0, Chunk(["a"])),
    ]
    work = InputRecovery(
        streams,
        lambda gate: (rig.processor, gate),
        "map (1/1)",
        DEFAULT_ELEMENT_LIMITS,
        lambda index: partial(give, index),
    )

    go_through(work)

    assert inner == {1: [Chunk([2])], 2: [Chunk(["k"])]}
    assert rig.head.seen == [Chunk(["a"])]


@pytest.mark.parametrize(
    "values",
    ["[A(1), A(2)]", "[(1, C.X), (2, C.Y)]", "[{'k': A(C.X)}, 'text', C.Y]", "[1, 'plain']"],
    ids=["instances", "members", "deep inside", "no classes"],
)
def test_records_of_another_program_become_those_of_the_program_that_runs(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch, values: str
) -> None:
    """Classes, members and fields of records in flight are matched by name, as those of values in state."""
    before = "class C(Enum):\n  X = 1\n  Y = 2\n@dataclass\nclass A:\n  a: object"
    former = Program(monkeypatch, before)
    pieces = stream(0, 0, Chunk(former.value(values)), Chunk([former.value(values)[0]])).pieces
    former.end()
    program = Program(monkeypatch, before.replace("X = 1\n  Y = 2", "Y = 1\n  X = 2") + "\n  b: int = 7")
    rig = Rig(network, 1)

    go_through(recovery(rig.processor, RecoveredStream(0, 0, pieces, find_class=running().by_reference)))

    expected = program.value(values)
    assert rig.head.values == [*expected, expected[0]]
    assert [type(each) for each in rig.head.values[: len(expected)]] == [type(each) for each in expected]


def test_records_of_another_program_whose_class_is_gone_are_refused(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = Program(monkeypatch, "class A:\n  pass")
    pieces = stream(0, 0, Chunk([former.value("A()")])).pieces
    former.end()
    refused = RecoveredStream(0, 0, pieces, find_class=running().by_reference)

    with pytest.raises(
        StateRestoreError,
        match=r"gate 0, channel 0.*: class A of the program is in the state, and is not found by its name",
    ):
        go_through(recovery(Rig(network, 1).processor, refused))


def test_it_is_a_bounded_piece_of_work_each_time(network: LocalNetwork) -> None:
    rig = Rig(network, 1)
    work = recovery(
        rig.processor, stream(0, 0, *[Chunk([number]) for number in range(9)], piece_bytes=len(serialized(Chunk([0]))))
    )

    assert work.process(3, lambda: False)
    first = rig.head.values
    assert work.process(1_000, lambda: True)
    second = rig.head.values
    assert not work.process(1_000, lambda: False)

    assert (first, second, rig.head.values) == ([0, 1, 2], [0, 1, 2, 3], list(range(9)))
    assert not work.process(1, lambda: False)


def test_a_stream_that_ends_within_an_element_is_refused(network: LocalNetwork) -> None:
    whole = stream(0, 0, Chunk(["a"]), Chunk(["b"]))
    cut_off = RecoveredStream(0, 0, whole.pieces[:-1])

    with pytest.raises(StateRestoreError, match="the data in flight is cut off"):
        go_through(recovery(Rig(network, 1).processor, cut_off))


def test_nothing_is_processed_after_its_close(network: LocalNetwork) -> None:
    rig = Rig(network, 1)
    work = recovery(rig.processor, stream(0, 0, Chunk(["a"]), Chunk(["b"]), piece_bytes=3))
    work.process(1, lambda: False)

    work.close()
    work.close()

    assert not work.process(1_000, lambda: False)
    assert rig.head.seen == []


def test_recovered_elements_that_wait_are_in_flight_again(network: LocalNetwork) -> None:
    """Elements are in flight until the head gets them."""
    rig = Rig(network, 1)
    head = Head()
    processor = InputProcessor(rig.gates, head, "join (1/1)", slices=RecordSlices[int](lambda: 0))

    processor.process_recovered(0, 0, [Chunk([1, 2]), Watermark(5)])

    assert head.seen == []
    assert processor.is_available
    kept = b"".join(processor.in_flight(0, 0))
    assert ElementDeserializer().feed(memoryview(kept)) == [Chunk([1, 2]), Watermark(5)]
    assert processor.process_pending(lambda: False)
    assert head.values == [1, 2]
    assert head.seen[-1] == Watermark(5)


def test_the_rest_of_a_chunk_is_in_flight(network: LocalNetwork) -> None:
    """Records that wait when a mail comes are neither processed nor lost, and nothing is looked at before them."""
    rig = Rig(network, 2)
    head = Head()
    processor = InputProcessor(rig.gates, head, "slow (1/1)", slices=RecordSlices[int](lambda: 0))
    send(rig.producers[1], list(range(100)), Watermark(4))

    processor.process_input(8, lambda: True)

    assert head.values == [0]
    assert processor.is_available
    assert (processor.has_polled(0, 0), processor.has_polled(0, 1)) == (False, True)
    (rest, watermark) = ElementDeserializer().feed(memoryview(b"".join(processor.in_flight(0, 1))))
    assert isinstance(rest, Chunk)
    assert (rest.values, watermark) == (list(range(1, 100)), Watermark(4))
    woken: list[bool] = []
    processor.watch(lambda: woken.append(True))
    assert woken
    processor.process_input(8, lambda: False)
    assert head.values == list(range(100))
    processor.close()
