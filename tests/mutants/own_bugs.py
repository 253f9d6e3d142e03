"""Bugs that this stack had, or nearly had, and Flink's has not: found by review and in the simulator.

Side:       any.
Invariants: as in ``registry.py``.
"""

from typing import Final

from tests.mutants.mutant import Mutant

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
)
