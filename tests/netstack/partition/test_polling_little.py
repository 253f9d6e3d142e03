"""``PipelinedSubpartition.poll_little``: what ``poll`` finds, where that is all there is and little; else it touches
nothing.
"""

from hypothesis import given
from hypothesis import strategies as st

from netstack.partition.result_subpartition import BufferAndBacklog
from netstack.wire.messages import DataType
from tests.netstack.partition.doubles import Reading, event, unaligned_barrier

LITTLE = 20


class Producer:
    """Does what a script says, letter by letter."""

    def __init__(self) -> None:
        self.reading = Reading()
        self.num_bytes = 0

    def do(self, letter: str) -> None:
        it = self.reading
        builder = it.builders[-1] if it.builders and not it.builders[-1].is_finished else None
        match letter:
            case "w" | "W":  # a little, or too much
                if builder is None or builder.is_full:
                    builder = it.add(is_finished=False)
                self.num_bytes += 1
                builder.append_and_commit(bytes([self.num_bytes % 256]) * (3 if letter == "w" else LITTLE + 1))
            case "d" if builder is not None:
                builder.finish()
            case "f":
                it.subpartition.flush()
            case "e" if builder is None:
                it.subpartition.add(event())
            case "b":
                it.subpartition.add(unaligned_barrier())
            case _:
                pass  # not now
        it.subpartition.check_invariants()

    def poll(self, *, takes_little: bool) -> tuple[bytes, int, DataType, int] | None:
        """Return the next buffer, however it is found; None if there is none."""
        subpartition = self.reading.subpartition
        found = subpartition.poll_little(LITTLE) if takes_little else None
        if found is None:
            found = subpartition.poll()
        subpartition.check_invariants()
        return None if found is None else described(found)


def described(found: BufferAndBacklog) -> tuple[bytes, int, DataType, int]:
    buffer, backlog, next_data_type, sequence_number = found
    content = bytes(buffer.view)
    buffer.recycle()
    return content, backlog, next_data_type, sequence_number


@given(script=st.text("wwwWdfffebppp", max_size=30))
def test_polling_little_finds_what_polling_finds(script: str) -> None:
    one, other = Producer(), Producer()

    for letter in script + "dfppp":
        if letter == "p":
            assert one.poll(takes_little=True) == other.poll(takes_little=False)
        else:
            one.do(letter)
            other.do(letter)

    assert one.reading.listener.count == other.reading.listener.count
    for producer in (one, other):
        while producer.poll(takes_little=False) is not None:
            pass
        producer.reading.close()


def test_a_lone_flushed_buffer_is_little_until_it_is_too_large() -> None:
    producer = Producer()

    for letter in "wf":
        producer.do(letter)
    found = producer.reading.subpartition.poll_little(LITTLE)
    assert found is not None
    assert described(found) == (b"\1\1\1", 0, DataType.NONE, 0)

    for letter in "Wf":
        producer.do(letter)
    assert producer.reading.subpartition.poll_little(LITTLE) is None
    assert producer.poll(takes_little=False) == (bytes([2]) * (LITTLE + 1), 0, DataType.NONE, 1)
    producer.reading.close()
