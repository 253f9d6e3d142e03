"""``DataType``: ordinals and properties that decide over credit, blocking and priority."""

from dataclasses import replace

import pytest

from netstack.errors import LocalProtocolError
from netstack.wire.messages import MAX_SEQUENCE_NUMBER as MAX
from netstack.wire.messages import DataType, ErrorCode, is_before, wrapped_number
from netstack.wire.offer_messages import GateIdentity, gate_token


def test_the_ordinals_are_those_of_flink() -> None:
    """The byte on the wire is the ordinal, so the order is part of the protocol."""
    assert [data_type.name for data_type in DataType] == [
        "NONE",
        "DATA_BUFFER",
        "EVENT_BUFFER",
        "PRIORITIZED_EVENT_BUFFER",
        "ALIGNED_CHECKPOINT_BARRIER",
        "TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER",
        "RECOVERY_COMPLETION",
        "END_OF_SEGMENT",
        "DATA_BUFFER_WITH_CLEAR_END",
        "END_OF_DATA",
        "END_OF_PARTITION",
        "RECOVERY_METADATA",
        "ALIGNED_WATERMARK_EVENT",
        "UNALIGNED_WATERMARK_EVENT",
    ]
    assert [int(data_type) for data_type in DataType] == list(range(14))


def test_some_types_are_data_and_some_events_block_or_overtake() -> None:
    """Only data costs credit.  Barriers that need alignment, the end of recovery and aligned watermarks stop the sender
    until it is resumed.
    """
    buffers = {data_type for data_type in DataType if data_type.is_buffer}

    assert buffers == {DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END}
    assert {data_type for data_type in DataType if data_type.is_event} == set(DataType) - buffers - {DataType.NONE}
    assert {int(data_type) for data_type in DataType if data_type.is_blocking_upstream} == {4, 5, 6, 12}
    assert [data_type for data_type in DataType if data_type.has_priority] == [DataType.PRIORITIZED_EVENT_BUFFER]


def test_error_codes_are_numbered_without_gaps() -> None:
    """A code beyond the last one is of a later version; the codec relies on there being no gaps."""
    assert [int(code) for code in ErrorCode] == list(range(len(ErrorCode)))


# ---------------------------------------------------------------- numbers of buffers, which wrap


def test_sequence_numbers_wrap_like_java_ints() -> None:
    """After 2^31 - 1 comes -2^31, and before and after can be told apart across the wrap."""
    assert [wrapped_number(number + 1) for number in (0, MAX - 1, MAX, -MAX - 1, -1)] == [1, MAX, -MAX - 1, -MAX, 0]
    assert [is_before(0, 1), is_before(1, 1), is_before(2, 1), is_before(MAX, -MAX - 1), is_before(-MAX - 1, MAX)] == [
        True,
        False,
        False,
        True,
        False,
    ]


# ---------------------------------------------------------------- tokens of gates


GATE = GateIdentity(b"J" * 16, "clicks", 9)


def test_every_gate_job_time_and_secret_has_its_own_token() -> None:
    others = [replace(GATE, job_id=b"K" * 16), replace(GATE, name="click"), replace(GATE, expires_ms=10)]
    tokens = {gate_token(bytes(32), each) for each in (GATE, *others)} | {gate_token(b"s" * 32, GATE)}

    assert len(tokens) == 5
    assert {len(token) for token in tokens} == {32}
    assert gate_token(bytes(32), GATE) == gate_token(bytes(32), replace(GATE))


@pytest.mark.parametrize(
    "change", [{"job_id": b"J"}, {"name": ""}, {"name": "é" * 128}, {"expires_ms": -1}, {"expires_ms": 2**63}]
)
def test_what_is_no_gate_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        replace(GATE, **change)  # type: ignore[arg-type]  # one field each
