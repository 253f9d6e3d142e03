"""Bugs that this stack had, or nearly had, and Flink's has not: found by review and in the simulator.

Side:       any.
Invariants: as in ``registry.py``.
"""

from typing import Final

from tests.mutants.mutant import Mutant

_GATE: Final = "tests/netstack/gate/test_gate_orders.py"
_RUNS: Final = "tests/netstack/handlers/test_handler_runs.py"

OWN_BUGS: Final = (
    # ---------------------------------------------------------------- runs of several buffers: bugs of this stack's own
    Mutant(
        "run_overdraws_its_credit",
        "run",
        "a run is as long as the gather write, not as the credit",
        "netstack.handlers.view_reader",
        "        run = poll_run(min(max_segments, num_credits))\n",
        "        run = poll_run(max_segments)\n",
        f"{_RUNS}::test_a_reader_that_is_alone_sends_what_it_has_as_one_run",
    ),
    Mutant(
        "run_looks_for_old_data_too_early",
        "run",
        "the gate is not told of a run whose predecessor the task polled, without a look at what comes, while it was queued",
        "netstack.gate.remote_channel",
        "                rest.extend(zip(buffers, range(sequence_number, end), strict=True))\n",
        "                num_buffers = 10**9 if not rest else -1\n"
        "                rest.extend(zip(buffers, range(sequence_number, end), strict=True))\n",
        "tests/netstack/gate/test_remote_runs.py::test_the_gate_is_told_if_nothing_is_left_of_what_was_there_before",
    ),
    Mutant(
        "less_than_a_lump_is_never_announced",
        "run",
        "a sender without any credit waits until half of the initial one has come together",
        "netstack.gate.buffer_manager",
        "(self.num_unannounced < self._lump and self.num_granted > self.num_spent)",
        "self.num_unannounced < self._lump",
        "tests/netstack/gate/test_buffer_manager.py::test_a_sender_without_credit_is_told_of_every_new_one",
    ),
    Mutant(
        "run_of_nothing",
        "run",
        "empty data buffers become a run, which the task gets instead of the sender's credit",
        "netstack.wire.decoder",
        " or length == BUFFER_RESPONSE_HEADER_BYTES:",
        ":",
        f"{_RUNS}::test_empty_buffers_in_a_row_are_credit_at_once",
    ),
    Mutant(
        "run_takes_shared_segments",
        "run",
        "a segment that was copied for a checkpoint goes home with the run, although the copy is still to be written",
        "netstack.buffer.builder",
        "        if self._made_lease is not None or self._read:\n",
        "        if self._read:\n",
        "tests/netstack/partition/test_subpartition_runs.py::test_a_barrier_that_times_out_copies_segments_and_leaves_them_in_the_queue",
    ),
    # ---------------------------------------------------------------- partitions
    Mutant(
        "refused_range_consumes_what_it_got",
        "range",
        "a range of which one subpartition is taken consumes the others, as Flink's does",
        "netstack.partition.result_partition",
        "            union.hand_back()\n",
        "            union.release()\n",
        "tests/netstack/partition/test_result_partition_flink.py::test_a_range_that_cannot_be_read_is_refused_as_a_whole",
    ),
    Mutant(
        "small_buffer_grows_inside_a_record",
        "approximate",
        "a consumer that fails between the two parts of a record in one buffer leaves the second one to the next consumer",
        "netstack.partition.result_partition",
        "        if num_missing and self.partition_type.is_reconsumable:\n",
        "        if num_missing < 0:\n",
        "tests/netstack/partition/test_result_partition_flink.py::test_a_consumer_that_fails_while_a_small_buffer_is_full_tears_no_record",
    ),
    Mutant(
        "who_read_all_of_a_buffer_read_whole_records",
        "approximate (Flink's isStartOfDataBuffer)",
        "the rest of a record is read by the next consumer if the last one read its beginning before that buffer was finished",
        "netstack.partition.pipelined",
        "            self._skips_partial_record = not consumer.is_data_available\n",
        "            self._skips_partial_record = False\n",
        "tests/netstack/partition/test_approximate.py::"
        "test_the_rest_of_a_record_is_skipped_although_its_first_buffer_was_read_before_it_was_finished",
    ),
    Mutant(
        "retired_reader_reads_once_more",
        "approximate",
        "a reader that was about to poll when another one took its place takes that one's first buffer",
        "netstack.partition.approximate",
        "            found = self.poll() if reader is self._view else None\n",
        "            found = self.poll()\n",
        "tests/netstack/partition/test_approximate.py::test_a_reader_that_is_just_about_to_read_takes_nothing_from_the_next_one",
    ),
    # ---------------------------------------------------------------- priority events
    Mutant(
        "priority_event_in_an_ordinary_turn_is_forgotten",
        "priority",
        "news of a priority event that was polled with its channel's data promise another one",
        "netstack.gate.input_gate",
        "            if buffer.data_type is _PRIORITY and not was_prioritized:\n",
        "            if buffer.data_type is _PRIORITY and was_prioritized:\n",
        f"{_GATE}::test_a_priority_event_that_was_polled_as_an_ordinary_one_is_remembered",
    ),
    Mutant(
        "told_of_during_the_poll_is_told_of_for_ever",
        "priority",
        "a priority event that was told of while it was polled leaves its channel in front with nothing to say",
        "netstack.gate.input_gate",
        "            if channel.is_prioritized and told is not None and not is_before(found.sequence_number, told):\n",
        "            if channel.is_prioritized and told is None:\n",
        f"{_GATE}::test_a_priority_event_that_is_told_of_while_it_is_polled_leaves_nothing_behind",
    ),
    Mutant(
        "local_priority_is_lost_while_the_view_is_opened",
        "priority",
        "a local priority event that was told of before there was a view waits like data",
        "netstack.gate.local_channel",
        "        if self._told_priority is not None:\n",
        "        if self._told_priority is not None and view.is_released:\n",
        "tests/netstack/gate/test_local_channel.py::test_a_priority_event_that_is_announced_before_the_view_is_there_keeps_its_priority",
    ),
    Mutant(
        "union_believes_late_news",
        "priority",
        "a union promises a priority event that its gate has handed out meanwhile",
        "netstack.gate.union_gate",
        "        has_priority = has_priority and member.gate.priority_event_available_future().is_done\n",
        "",
        "tests/netstack/gate/test_union_gate.py::test_late_news_of_a_priority_event_promise_none",
    ),
    # ---------------------------------------------------------------- connections
    Mutant(
        "close_leaves_handshakes_alone",
        "TLS",
        "a server that is closed leaves connections behind that are inside their TLS handshake",
        "netstack.channel.tls_acceptor",
        "        await _cancelled(list(self._handshakes))\n",
        "",
        "tests/netstack/channel/test_tls.py::test_close_cuts_connections_that_are_inside_their_handshake",
    ),
    Mutant(
        "events_are_not_bounded",
        "flood",
        "a producer that sends nothing but events fills the memory of its consumer's process",
        "netstack.gate.remote_channel",
        "            self._check_room_for_event(buffer.size)\n",
        "",
        "tests/netstack/handlers/test_both_sides.py::test_a_producer_of_nothing_but_events_ends_its_own_channel_only",
    ),
    Mutant(
        "read_events_count_for_ever",
        "flood",
        "a channel fails after so many events, although its task reads them",
        "netstack.gate.input_gate",
        "        channel.num_events_in += 1\n",
        "",
        "tests/netstack/handlers/test_both_sides.py::test_events_that_are_read_make_room_for_others",
    ),
    Mutant(
        "first_end_of_several_ends_the_channel",
        "range",
        "a channel of several subpartitions ends with the first of them, and the others' data is lost",
        "netstack.gate.input_channel",
        "        return self._num_ends[data_type] == self.num_subpartitions\n",
        "        return True\n",
        "tests/netstack/handlers/test_both_sides.py::test_a_channel_of_several_subpartitions_ends_with_the_last_of_them",
    ),
)
