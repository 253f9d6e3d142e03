"""Identifiers: exactly the bytes that travel."""

import pytest

from netstack.ids import (
    ConnectionID,
    ResultPartitionID,
    execution_attempt_id,
    input_channel_id,
    intermediate_partition_id,
    new_input_channel_id,
)


def test_a_channel_id_is_its_two_halves_lower_first() -> None:
    """Golden bytes of inventory 2.A."""
    assert input_channel_id(1, 2).hex() == "0000000000000001" + "0000000000000002"
    assert input_channel_id(-1, 0).hex() == "f" * 16 + "0" * 16


def test_random_channel_ids_differ() -> None:
    """16 random bytes each."""
    ids = {new_input_channel_id() for _ in range(100)}

    assert len(ids) == 100
    assert {len(each) for each in ids} == {16}


def test_partition_and_attempt_ids_have_flinks_sizes() -> None:
    """20 and 40 bytes, numbers big endian at the end."""
    partition = intermediate_partition_id(b"p" * 16, 7)
    attempt = execution_attempt_id(b"g" * 16, b"v" * 16, 3, 1)

    assert partition == b"p" * 16 + b"\0\0\0\7"
    assert attempt == b"g" * 16 + b"v" * 16 + b"\0\0\0\3" + b"\0\0\0\1"
    assert str(ResultPartitionID(partition, attempt)) == "70707070#7@subtask 3 attempt 1"


def test_ids_of_wrong_size_are_refused() -> None:
    """A short id would shift every field behind it on the wire."""
    with pytest.raises(ValueError, match="16 bytes, got 3"):
        intermediate_partition_id(b"abc", 0)
    with pytest.raises(ValueError, match="have 16 bytes, got 16 and 1"):
        execution_attempt_id(b"g" * 16, b"v", 0, 0)


def test_a_connection_id_prints_as_an_address() -> None:
    """A connection id is printed in messages as host and port."""
    assert str(ConnectionID("127.0.0.1", 6121)) == "127.0.0.1:6121"
