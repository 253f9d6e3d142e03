"""``NoChannelState``: all buffers are recycled."""

from netstack.partition.channel_state import NO_CHANNEL_STATE, InFlightData, InputChannelInfo, ResultSubpartitionInfo
from tests.netstack.partition.doubles import Arena


def test_it_recycles_everything() -> None:
    """The buffers of inputs, of outputs, and of outputs that are known only later are recycled."""
    arena, known, later = Arena(), InFlightData(), InFlightData()
    builder = arena.builder(8)
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(b"abc")
    builder.close()

    NO_CHANNEL_STATE.add_input_data(1, InputChannelInfo(0, 1), [consumer.build()])
    known.complete([consumer.build()])
    NO_CHANNEL_STATE.add_output_data(1, ResultSubpartitionInfo(0, 1), known)
    NO_CHANNEL_STATE.add_output_data(1, ResultSubpartitionInfo(0, 1), later)
    later.complete([consumer.build()])

    consumer.close()
    assert (arena.num_out, known.take(), later.take()) == (0, (), ())
