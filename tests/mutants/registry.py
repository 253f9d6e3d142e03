"""The historical bugs of Flink's network stack, put back into this one: each is a text exchanged in one module.

Invariants: ``old`` stands exactly once in its module (``test_mutants.py`` checks it); the patched module can be
            imported; ``killed_by`` passes without the patch.
"""

from typing import Final

from tests.mutants.checkpoint_bugs import CHECKPOINT_BUGS
from tests.mutants.own_bugs import OWN_BUGS
from tests.mutants.patching import Mutant
from tests.mutants.storage_bugs import STORAGE_BUGS
from tests.mutants.window_bugs import WINDOW_BUGS

_SIM: Final = "tests/sim/test_sim.py::test_every_invariant_holds_after_every_step"
_HANDLERS: Final = "tests/netstack/handlers/test_hist_handlers.py"
_HISTORY: Final = "tests/netstack/partition/test_history.py"
_POOLS: Final = "tests/promises/buffer/test_segments_of_pools.py"
_MANAGER: Final = "tests/netstack/gate/channels/test_buffer_manager.py"


FLINK_BUGS: Final = (
    # ---------------------------------------------------------------- A. lost wake-ups
    Mutant(
        "flush_tells_nobody",
        "8694 8760",
        "a flush that makes the only buffer readable does not tell the reader",
        "netstack.partition.pipelined_subpartition",
        "view = self._view if has_one_unfinished and not self._is_blocked else None",
        "view = None",
        "tests/promises/partition/test_readers_and_barriers.py::test_hist_8694_8760_flush_always_without_a_timer_never_strands_data",
    ),
    Mutant(
        "resume_tells_nobody",
        "23223",
        "what was added while the subpartition was blocked is not announced when it resumes",
        "netstack.partition.pipelined_subpartition",
        "view = self._view if self._availability_locked()[0] else None",
        "view = None",
        f"{_HISTORY}::test_hist_23223_data_flushed_while_blocked_is_told_on_resume",
    ),
    Mutant(
        "resume_tells_of_one_buffer_only",
        "25664",
        "as above, if more than one buffer was added",
        "netstack.partition.pipelined_subpartition",
        "view = self._view if self._availability_locked()[0] else None",
        "view = self._view if self._availability_locked()[0] and len(self._buffers) == 1 else None",
        f"{_HISTORY}::test_hist_25664_buffers_added_while_blocked_are_told_on_resume",
    ),
    Mutant(
        "priority_is_a_flag",
        "40521",
        "polling one priority event forgets that there is another",
        "netstack.partition.pipelined_subpartition",
        "            self._num_priority -= 1\n",
        "            self._num_priority = 0\n",
        f"{_HISTORY}::test_hist_40521_a_priority_event_queues_behind_one_that_is_left",
    ),
    Mutant(
        "union_forgets_what_was_told_early",
        "union view",
        "a notification that comes before all views were made is lost",
        "netstack.partition.result_subpartition",
        "            is_ready = bool(self._ready)\n",
        "            is_ready = False\n",
        "tests/promises/partition/test_readers_and_barriers.py::test_hist_union_view_told_before_it_was_created",
    ),
    Mutant(
        "writability_is_ignored",
        "13100",
        "a socket that becomes writable again does not make anybody write",
        "netstack.handlers.partition_request_queue",
        "                self.enqueue_available_reader(reader)\n            self._write_available()",
        "                self.enqueue_available_reader(reader)",
        f"{_HANDLERS}::test_hist_13100_a_socket_that_took_nothing_for_long_resumes_by_itself",
    ),
    Mutant(
        "pool_asks_never_again",
        "29298",
        "the pool whose last buffer was taken does not stand in line for the next one",
        "netstack.buffer.local_buffer_pool",
        "                spare = self._parent.take_or_wait(self)\n",
        "                spare = None\n",
        f"{_POOLS}::test_hist_29298_the_last_buffer_taken_in_the_callback_is_asked_for_again",
    ),
    Mutant(
        "empty_pool_says_it_is_available",
        "16972",
        "a pool that gave its last segment away stays available",
        "netstack.buffer.local_buffer_pool",
        "                else:\n                    self._availability.reset_unavailable()\n        else:",
        "        else:",
        _SIM,
    ),
    Mutant(
        "broken_callback_silences_the_others",
        "9755",
        "an exception of one callback keeps the callbacks behind it from being made",
        "netstack.availability",
        "                    others.callback(other)\n",
        "                    pass\n",
        "tests/netstack/handlers/test_partition_request_queue.py::test_a_failing_callback_of_one_partition_does_not_keep_the_others",
    ),
    # ---------------------------------------------------------------- B. lock order
    Mutant(
        "floating_buffer_goes_back_under_the_lock",
        "22946 9676",
        "a surplus floating buffer is recycled while the channel's lock is held",
        "netstack.gate.channels.buffer_manager",
        "                        surplus.append(floating.pop())\n",
        "                        floating.pop().recycle()\n",
        _SIM,
    ),
    Mutant(
        "readers_are_told_under_the_lock_of_the_partition",
        "28942 28785",
        "releasing a partition calls its readers while its lock is held",
        "netstack.partition.result_partition",
        "            calls = self._release_locked(failure)\n        run_all(calls)",
        "            calls = self._release_locked(failure)\n            run_all(calls)",
        f"{_HISTORY}::test_hist_28942_28785_nobody_is_called_under_a_lock",
    ),
    # ---------------------------------------------------------------- C. starvation and credit
    Mutant(
        "offer_not_needed_ends_the_waiting",
        "8747",
        "a channel that did not need the offered buffer still believes that it stands in line",
        "netstack.gate.channels.buffer_manager",
        "        with self._lock:\n            self.is_waiting = False\n            if self._num_missing_locked() <= "
        "0:\n",
        "        with self._lock:\n            was_waiting, self.is_waiting = self.is_waiting, False\n"
        "            if self._num_missing_locked() <= 0:\n                self.is_waiting = was_waiting\n",
        _SIM,
    ),
    Mutant(
        "no_backlog_announcement",
        "16641",
        "a receiver without exclusive buffers never hears that there is something for it",
        "netstack.handlers.partition_request_queue",
        "        elif backlog > 0 and reader.needs_backlog_announcement:",
        "        elif backlog < 0 and reader.needs_backlog_announcement:",
        "tests/netstack/handlers/test_partition_request_queue.py::test_announce_backlog",
    ),
    Mutant(
        "blocked_channel_hoards",
        "16404 8523",
        "a channel that waits at its barrier keeps the floating buffers that another one needs",
        "netstack.gate.channels.channel_receiver",
        "                if self.is_blocked and self.buffer_manager.initial_credit == 0:",
        "                if self.is_blocked and self.buffer_manager.initial_credit < 0:",
        f"{_MANAGER}::test_hist_16404_a_blocked_channel_does_not_hoard_the_only_floating_buffer",
    ),
    Mutant(
        "listeners_miss_what_the_network_pool_hands_out",
        "24035",
        "a listener hears of recycled segments only, not of those that come from the network pool",
        "netstack.buffer.local_buffer_pool",
        "        if listener is not None:\n            wakeups.append(lambda: self._serve(listener, segment))\n        "
        "return is_kept",
        "        return is_kept",
        "tests/netstack/buffer/test_buffer_listener.py::test_hist_24035_listeners_hear_of_segments_that_the_network_pool_hands_out",
    ),
    Mutant(
        "overdraft_eats_the_guarantees_of_others",
        "31386 14872",
        "a pool takes more than its share although others have not drawn their guarantees",
        "netstack.buffer.network_buffer_pool",
        "num_overdraft >= max_overdraft_buffers or len(self._free) <= self._num_owed:",
        "num_overdraft >= max_overdraft_buffers or not self._free:",
        f"{_POOLS}::test_overdraft_never_takes_what_others_were_promised",
    ),
    Mutant(
        "channel_is_queued_twice",
        "5169",
        "every notification queues the channel once more, so busy channels push the others aside",
        "netstack.gate.single_input_gate",
        "            if channel.is_queued or self._lifecycle is _RELEASED or channel.lifecycle is _RELEASED:\n",
        "            if self._lifecycle is _RELEASED or channel.lifecycle is _RELEASED:\n",
        _SIM,
    ),
    # ---------------------------------------------------------------- D. leaks and double releases
    Mutant(
        "refused_buffer_is_recycled_twice",
        "20654",
        "a buffer that came out of order goes back twice: the same memory in two hands",
        "netstack.gate.channels.channel_receiver",
        "    def _break(self, buffer: NetworkBuffer | None, error: NetstackError) -> NetstackError:\n",
        "    def _break(self, buffer: NetworkBuffer | None, error: NetstackError) -> NetstackError:\n"
        "        if buffer is not None:\n            buffer.recycle()\n",
        "tests/netstack/gate/channels/test_remote_input_channel.py::test_a_wrong_sequence_number_surfaces_at_the_next_poll",
    ),
    Mutant(
        "failed_write_keeps_the_buffer",
        "7499 2089",
        "nobody recycles a buffer whose frame could not be written",
        "netstack.transport.message_codec",
        "    except BaseException:\n        _recycle_all(messages)\n        raise\n    if len(messages)",
        "    except BaseException:\n        raise\n    if len(messages)",
        f"{_HANDLERS}::test_hist_7499_2089_a_write_that_fails_leaves_no_buffer_behind",
    ),
    Mutant(
        "writer_shares_the_readers_reference",
        "22424",
        "when the consumer leaves, the memory is freed while its producer still writes into it",
        "netstack.buffer.buffer_builder",
        "        self._has_consumer = True\n        self._lease.retain()\n",
        "        self._has_consumer = True\n",
        f"{_HISTORY}::test_hist_22424_memory_stays_while_its_producer_writes",
    ),
    Mutant(
        "half_filled_builders_stay_open",
        "23724 32541",
        "the buffer that was being written when the task ended is never given back",
        "netstack.partition.result_partition",
        "        self._finish_builders()\n        if not is_finished and",
        "        if not is_finished and",
        f"{_HISTORY}::test_hist_23724_32541_half_filled_builders_are_closed",
    ),
    Mutant(
        "destroyed_pool_swallows_segments",
        "19964",
        "a segment that meets a destroyed pool vanishes there",
        "netstack.buffer.local_buffer_pool",
        "        if self.is_destroyed or self.num_requested > self.num_buffers:",
        "        if self.num_requested > self.num_buffers:",
        f"{_POOLS}::test_hist_19964_a_segment_that_meets_a_destroyed_pool_is_not_lost",
    ),
    Mutant(
        "cancel_looks_at_ready_readers_only",
        "13245",
        "a reader that has no place in the queue is not released by its cancel",
        "netstack.handlers.partition_request_queue",
        "        if reader is not None:\n            self._ready.pop(reader, None)\n            self._unannounced",
        "        if reader is not None and reader in self._ready:\n            self._ready.pop(reader, None)\n"
        "            self._unannounced",
        f"{_HANDLERS}::test_hist_13245_cancel_in_every_state_of_the_reader",
    ),
    # ---------------------------------------------------------------- E. the end of a partition
    Mutant(
        "ended_channel_is_queued_again",
        "8750",
        "a late notification queues a channel that has ended",
        "netstack.gate.single_input_gate",
        "            if channel.is_queued or self._lifecycle is _RELEASED or channel.lifecycle is _RELEASED:\n",
        "            if channel.is_queued or self._lifecycle is _RELEASED:\n",
        "tests/sim/test_hist.py::test_hist_8750_a_late_notification_makes_nothing_available",
    ),
    Mutant(
        "released_channel_stays_queued",
        "22368",
        "a channel that was queued again while it ended is not taken out",
        "netstack.gate.single_input_gate",
        "                (self._queue.priority if channel.is_prioritized else self._queue.rest).remove(channel)\n",
        "",
        "tests/netstack/gate/test_input_queue.py::test_hist_22368_an_ended_channel_does_not_stay_in_the_queue",
    ),
    # ---------------------------------------------------------------- F. requests and connections
    Mutant(
        "early_request_is_forgotten",
        "1954 9413 25055",
        "whoever asked before the partition was registered is not told when it comes",
        "netstack.partition.result_partition_manager",
        "                    calls += [*waiting.end(), waiting.on_partition]\n        except",
        "                    calls += [*waiting.end()]\n        except",
        f"{_HANDLERS}::test_hist_1954_9413_25055_a_partition_that_comes_late_is_served",
    ),
    Mutant(
        "view_that_fails_takes_the_connection_along",
        "9057",
        "an error while a view is made is nobody's, and the reader stays half-made",
        "netstack.handlers.partition_request_server_handler",
        "        except Exception as error:  # noqa: BLE001 - a view that cannot be made fails one receiver only "
        "(FLINK-9057)",
        "        except ZeroDivisionError as error:",
        f"{_HANDLERS}::test_hist_9057_a_failure_at_any_step_of_making_a_reader",
    ),
    Mutant(
        "events_for_unknown_producers_are_dropped",
        "1496",
        "task events that were sent before the producer was known are lost",
        "netstack.gate.gate_channels",
        "                self._starting[channel] = list(self._pending_events)\n",
        "                self._starting[channel] = []\n",
        "tests/netstack/gate/test_gate_channels.py::test_hist_1496_events_for_unknown_producers_are_kept",
    ),
    Mutant(
        "buffer_size_for_strangers_is_an_error",
        "24738",
        "a new buffer size that comes before the reader, or after its end, is a mistake",
        "netstack.handlers.partition_request_queue",
        "        view = None if reader is None else reader.open_view\n",
        '        if reader is None:\n            raise RemoteProtocolError("unknown")\n'
        "        view = reader.open_view\n",
        f"{_HANDLERS}::test_hist_24738_a_new_buffer_size_in_every_state_of_the_receiver",
    ),
    Mutant(
        "failed_connect_is_cached",
        "20615",
        "after one refused connection every later request waits for the attempt that failed",
        "netstack.connection_manager",
        "        self._attempt = None\n        early = self._early\n",
        "        early = self._early\n",
        "tests/netstack/test_connection_manager.py::test_hist_20615_a_failed_connect_is_not_cached",
    ),
    Mutant(
        "one_channel_fails_all",
        "17992",
        "an error in one channel ends every channel of the shared connection",
        "netstack.handlers.partition_request_client_handler",
        '        _end(channel, as_netstack_error(error, TransportError, f"{channel!r} failed"))',
        '        self.fail_all(_as_netstack_error(error, "failed"))',
        f"{_HANDLERS}::test_hist_17992_one_poisoned_channel_of_a_hundred",
    ),
    Mutant(
        "last_error_hides_the_first",
        "18348",
        "whoever asks later is told the end of the connection instead of what caused it",
        "netstack.handlers.partition_request_client_handler",
        "        if self._error is None:\n            self._error = error\n        channels, self._channels",
        "        self._error = error\n        channels, self._channels",
        "tests/netstack/handlers/test_partition_request_client_handler.py::test_the_first_error_is_the_one_that_is_told",
    ),
    # ---------------------------------------------------------------- credit, which the simulator watches
    Mutant(
        "credit_is_not_spent",
        "I3",
        "the sender forgets to pay for its buffers",
        "netstack.handlers.view_reader",
        "# raises\n            credit.spent += 1\n",
        "# raises\n",
        _SIM,
    ),
    Mutant(
        "snapshot_misses_the_queue",
        "20645 I6",
        "an unaligned checkpoint does not persist what the input channel holds already",
        "netstack.gate.channels.input_channel",
        "        buffers = self.in_flight_locked(queued)\n        if buffers:\n            self._to_persist",
        "        buffers: list[NetworkBuffer] = []\n        if buffers:\n            self._to_persist",
        _SIM,
    ),
    Mutant(
        "recycled_before_it_was_sent",
        "20654 I4",
        "a buffer goes back as soon as it is handed to the transport, which still holds it",
        "netstack.transport.message_codec",
        "    return OutboundFrame(views, partial(_recycle_all, messages))",
        "    _recycle_all(messages)\n    return OutboundFrame(views, None)",
        _SIM,
    ),
)

MUTANTS: Final = (*FLINK_BUGS, *OWN_BUGS, *STORAGE_BUGS, *CHECKPOINT_BUGS, *WINDOW_BUGS)
