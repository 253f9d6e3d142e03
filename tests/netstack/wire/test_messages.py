"""``DataType``: ordinals and properties that decide over credit, blocking and priority."""

from netstack.wire.messages import DataType, ErrorCode


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


def test_two_types_are_data_and_all_others_but_none_are_events() -> None:
    """Only data costs credit."""
    buffers = {data_type for data_type in DataType if data_type.is_buffer}
    events = {data_type for data_type in DataType if data_type.is_event}

    assert buffers == {DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END}
    assert events == set(DataType) - buffers - {DataType.NONE}


def test_four_types_block_the_subpartition() -> None:
    """Barriers that need alignment, the end of recovery and aligned watermarks stop the sender until it is resumed."""
    assert {int(data_type) for data_type in DataType if data_type.is_blocking_upstream} == {4, 5, 6, 12}


def test_one_type_overtakes() -> None:
    """Only the prioritized event has priority."""
    assert [data_type for data_type in DataType if data_type.has_priority] == [DataType.PRIORITIZED_EVENT_BUFFER]


def test_error_codes_are_numbered_without_gaps() -> None:
    """A code beyond the last one is of a later version; the codec relies on there being no gaps."""
    assert [int(code) for code in ErrorCode] == list(range(len(ErrorCode)))
