"""Bugs of checkpoints: of their coordinator, their barriers, the data in flight and the restore.

Invariants: as in ``registry.py``.
"""

from typing import Final

from tests.mutants.patching import Mutant

_COORDINATOR: Final = "flowlet.checkpoint.jobmanager.checkpoint_coordinator"
_JOB: Final = "flowlet.checkpoint.jobmanager.job_checkpoints"
_COMPLETED: Final = "flowlet.checkpoint.jobmanager.checkpoint_history"
_ALIGNER: Final = "flowlet.checkpoint.task.single_checkpoint_barrier_handler"
_TRACKER: Final = "flowlet.checkpoint.task.checkpoint_barrier_tracker"
_WRITER: Final = "flowlet.checkpoint.task.channel_state_writer"
_SNAPSHOTS: Final = "flowlet.checkpoint.task.operator_snapshots"
_PERSISTER: Final = "netstack.gate.channels.input_channel"
_RECORDER: Final = "netstack.gate.channels.input_channel"
_SUBPARTITION: Final = "netstack.partition.pipelined_subpartition"
_CODEC: Final = "flowlet.checkpoint.task.state_codec"

_COORDINATED: Final = "tests/flowlet/checkpoint/jobmanager/test_checkpoint_coordinator.py"
_OF_A_JOB: Final = "tests/flowlet/checkpoint/jobmanager/test_job_checkpoints.py"
_ALIGNED: Final = "tests/flowlet/checkpoint/task/test_single_checkpoint_barrier_handler_aligned.py"
_ALTERNATING: Final = "tests/flowlet/checkpoint/task/test_single_checkpoint_barrier_handler_alternating.py"
_TRACKED: Final = "tests/flowlet/checkpoint/task/test_checkpoint_barrier_tracker.py"
_WRITTEN: Final = "tests/flowlet/checkpoint/task/test_channel_state_writer.py"
_OPERATORS: Final = "tests/promises/task/test_restored_operators.py"
_LOCAL: Final = "tests/netstack/gate/channels/test_local_input_channel.py"
_REMOTE: Final = "tests/netstack/gate/channels/test_remote_checkpoints.py"
_TIMED: Final = "tests/promises/partition/test_readers_and_barriers.py"
_STATES: Final = "tests/flowlet/checkpoint/task/test_state_codec.py"

CHECKPOINT_BUGS: Final = (
    # ---------------------------------------------------------------- the coordinator
    Mutant(
        "a_late_decline_fails_the_next_run",
        "13593",
        "an attempt of the last run fails a checkpoint of this one",
        _COORDINATOR,
        "        elif message.attempt in pending.missing:\n            self._fail(pending, failure)",
        "        else:\n            self._fail(pending, failure)",
        f"{_COORDINATED}::TestReportsThatDoNotFit::test_flink_13593_of_an_attempt_of_the_last_run",
    ),
    Mutant(
        "a_state_that_is_written_late_stays",
        "28984",
        "the file of an aborted checkpoint stays until the job ends",
        _COORDINATOR,
        "            self._effects.append(events.DiscardCheckpoint(message.checkpoint_id, "
        "self._litter[message.checkpoint_id]))",
        "            pass",
        f"{_COORDINATED}::TestReportsThatDoNotFit::test_flink_28984_a_state_that_is_written_late_is_removed",
    ),
    Mutant(
        "a_complete_checkpoint_subsumes_none",
        "coordinator",
        "an older checkpoint completes after a newer one, and its completion is announced",
        _COORDINATOR,
        "        older = [each for each in self.pending.values() if each.checkpoint_id < checkpoint_id]",
        "        older = list(self.pending.values())[:0]",
        f"{_COORDINATED}::TestSubsumption::test_a_complete_one_fails_the_older_ones",
    ),
    Mutant(
        "a_manifest_of_a_run_that_ended_stays",
        "18533",
        "a checkpoint that failed while its manifest was written looks complete on the disk",
        _COORDINATOR,
        "            self._effects.append(events.DiscardCheckpoint(checkpoint_id, location))\n            return\n"
        "        self._last_end_ms =",
        "            return\n        self._last_end_ms =",
        f"{_COORDINATED}::TestManifestThatOutlivesItsCheckpoint::test_the_run_ends_meanwhile",
    ),
    Mutant(
        "files_go_while_their_manifest_is_written",
        "coordinator",
        "the manifest that appears then names files that are gone",
        _COORDINATOR,
        "        if checkpoint_id not in self.written:  # else",
        "        if True:  # else",
        f"{_COORDINATED}::TestManifestThatOutlivesItsCheckpoint::test_the_timeout_covers_it",
    ),
    Mutant(
        "finished_tasks_are_waited_for",
        "2491",
        "no checkpoint is complete once a task has finished",
        _COORDINATOR,
        "dict(run.unfinished), tuple(run.finished), savepoint\n",
        "dict(run.subtasks), (), savepoint\n",
        f"{_COORDINATED}::TestTasksThatFinish::test_they_count_as_acknowledged_and_their_consumers_are_triggered",
    ),
    Mutant(
        "no_pause_after_a_failure",
        "coordinator",
        "a store that is slow gets the next checkpoint at once",
        _COORDINATOR,
        "        self._last_end_ms = self._now_ms\n        held_up_by",
        "        held_up_by",
        f"{_COORDINATED}::TestPeriod::test_the_pause_begins_at_the_end_of_one",
    ),
    Mutant(
        "tasks_do_not_hear_of_an_abort",
        "8871",
        "tasks go on with a checkpoint that has expired",
        _COORDINATOR,
        "if attempt in self._run.unfinished]",
        "if attempt in self._run.starting]",
        f"{_COORDINATED}::TestPeriod::test_one_that_takes_too_long_fails",
    ),
    Mutant(
        "failures_are_counted_over_a_success",
        "coordinator",
        "a job fails of checkpoints that did not fail one after the other",
        _COORDINATOR,
        "        self._counted.clear()\n        self._effects.append(events.KeepCheckpoint",
        "        self._effects.append(events.KeepCheckpoint",
        f"{_COORDINATED}::TestFailures::test_a_complete_one_between_two_failures",
    ),
    Mutant(
        "leftovers_go_while_their_manifest_is_written",
        "coordinator",
        "as above, when the files of aborted checkpoints are removed",
        _JOB,
        "min((before, *self._coordinator.written))",
        "before",
        f"{_OF_A_JOB}::test_leftovers_of_a_checkpoint_whose_manifest_is_being_written_stay",
    ),
    # ---------------------------------------------------------------- barriers
    Mutant(
        "a_late_barrier_begins_its_checkpoint_again",
        "21104 20331",
        "the barrier of a checkpoint that was declined counts for it",
        _ALIGNER,
        "checkpoint_id < self._current or (checkpoint_id == self._current and not self.is_checkpoint_pending)",
        "checkpoint_id < self._current",
        f"{_ALTERNATING}::test_a_cancellation_before_any_barrier_marks_the_id_as_done",
    ),
    Mutant(
        "a_late_barrier_stops_its_channel_for_ever",
        "21104",
        "nobody resumes the producer behind a barrier that came too late",
        _ALIGNER,
        "return [barriers.ResumeChannels((event.channel,))] if is_blocking else []",
        "return []",
        f"{_ALIGNED}::test_a_late_barrier_only_resumes_its_channel",
    ),
    Mutant(
        "a_newer_barrier_leaves_the_older_checkpoint",
        "17994",
        "the inputs still record for a checkpoint that a newer one has taken over",
        _ALIGNER,
        'orders = self._abort_older(f"the barrier of checkpoint {barrier.checkpoint_id}")',
        "orders: list[barriers.BarrierOrder] = []",
        f"{_ALTERNATING}::test_a_newer_unaligned_barrier_stops_the_older_checkpoint",
    ),
    Mutant(
        "a_cancellation_leaves_the_inputs_recording",
        "18063",
        "data that arrives is kept for a checkpoint that was cancelled",
        _ALIGNER,
        "was_recording = self._phase is not _Phase.ALIGNING",
        "was_recording = False",
        f"{_ALTERNATING}::test_a_cancellation_while_recording_stops_the_inputs",
    ),
    Mutant(
        "the_end_of_a_channel_completes_no_recording",
        "24068",
        "a checkpoint waits for the barrier of a channel that has ended",
        _ALIGNER,
        "            if self._is_complete:\n                orders += self._finish(stop=True)",
        "            pass",
        f"{_ALTERNATING}::test_the_end_of_a_channel_while_recording",
    ),
    Mutant(
        "ended_channels_are_waited_for",
        "2491",
        "no checkpoint is complete once a producer has ended",
        _ALIGNER,
        "        self._num_open -= 1\n",
        "",
        f"{_ALIGNED}::test_each_checkpoint_is_taken_or_given_up_once_and_nothing_stays_blocked",
    ),
    Mutant(
        "every_barrier_is_a_priority_event",
        "18252",
        "the barrier of a savepoint overtakes data",
        "flowlet.checkpoint.task.task_checkpoints",
        "is_priority=barrier.options.is_unaligned)",
        "is_priority=True)",
        "tests/promises/checkpoint/test_barriers_behind_a_subtask.py::test_only_an_unaligned_checkpoint_has_priority_behind_us",
    ),
    Mutant(
        "a_barrier_is_announced_after_it_came",
        "20145",
        "a second notification asks for a barrier that was polled already",
        _ALIGNER,
        " or not self.is_checkpoint_pending or event.channel in self._aligned:",
        " or not self.is_checkpoint_pending:",
        f"{_ALTERNATING}::test_a_channel_that_ended_or_counts_has_nothing_to_prioritize",
    ),
    Mutant(
        "an_overtaking_barrier_is_aligned",
        "aligner",
        "the data that it overtook is missing in the snapshot",
        _ALIGNER,
        "            if self._mode is BarrierMode.ALIGNED:",
        "            if False:",
        f"{_ALIGNED}::test_an_unaligned_barrier_is_refused",
    ),
    Mutant(
        "the_tracker_triggers_what_was_cancelled",
        "tracker",
        "a cancelled checkpoint is taken when the last channel has reported",
        _TRACKER,
        "if count.is_complete and not count.is_aborted and count.barrier is not None:",
        "if count.is_complete and count.barrier is not None:",
        f"{_TRACKED}::test_an_unaligned_barrier_is_refused",
    ),
    Mutant(
        "the_tracker_triggers_twice",
        "tracker",
        "a late barrier begins a checkpoint that was taken",
        _TRACKER,
        "            if checkpoint_id <= self._newest:\n                return []  # triggered",
        "            if checkpoint_id < 0:\n                return []  # triggered",
        f"{_TRACKED}::test_each_checkpoint_is_triggered_with_its_last_barrier_or_aborted_once",
    ),
    Mutant(
        "the_tracker_forgets_nothing",
        "tracker",
        "checkpoints whose barriers never come pile up",
        _TRACKER,
        "if len(self._counts) > MAX_TRACKED:",
        "if False:",
        f"{_TRACKED}::test_only_so_many_checkpoints_are_tracked",
    ),
    # ---------------------------------------------------------------- data in flight
    Mutant(
        "an_abort_before_the_start_is_forgotten",
        "17869",
        "a checkpoint that was aborted opens its channel state, and nobody closes it",
        _WRITER,
        "            self._aborted.append(checkpoint_id)\n",
        "",
        f"{_WRITTEN}::test_an_abort_may_come_before_the_start",
    ),
    Mutant(
        "a_newer_checkpoint_leaves_the_older_ones_open",
        "17869",
        "whoever waits for the data of a subsumed checkpoint waits for ever",
        _WRITER,
        "for each in errors for call in",
        "for each in errors[:0] for call in",
        f"{_WRITTEN}::test_a_newer_checkpoint_fails_the_older_ones",
    ),
    Mutant(
        "output_that_is_not_known_yet_is_left_out",
        "20645",
        "a snapshot is complete before the data that a barrier may overtake is known",
        _WRITER,
        "                found.num_pending += 1\n",
        "                pass\n",
        f"{_WRITTEN}::test_data_that_is_not_known_yet_is_waited_for",
    ),
    Mutant(
        "buffers_in_flight_are_never_recycled",
        "in flight",
        "each unaligned checkpoint costs network memory",
        _WRITER,
        "        recycle_all(buffers)\n",
        "        pass\n",
        f"{_WRITTEN}::test_data_is_kept_by_channel_in_its_order",
    ),
    Mutant(
        "the_barrier_that_is_waited_for_does_not_count",
        "20645",
        "data behind the barrier is kept as in flight",
        _PERSISTER,
        "self.last_seen_barrier + (self._status is _Status.COMPLETED)",
        "self.last_seen_barrier + 1",
        f"{_REMOTE}::test_a_checkpoint_that_starts_before_its_barrier_persists_until_it_comes",
    ),
    Mutant(
        "a_subsumed_checkpoint_is_started",
        "21104",
        "the data before a newer barrier is kept for an older checkpoint",
        _PERSISTER,
        "if self.has_barrier_received and self.last_seen_barrier > checkpoint_id:",
        "if False:",
        f"{_LOCAL}::test_a_checkpoint_whose_successor_has_come_is_refused",
    ),
    Mutant(
        "a_late_stop_ends_the_next_checkpoint",
        "17994",
        "the abort of an older checkpoint stops the recording of the newer one",
        _PERSISTER,
        "if checkpoint_id >= self.last_seen_barrier:",
        "if checkpoint_id >= 0:",
        f"{_REMOTE}::test_a_late_abort_of_an_older_checkpoint_stops_nothing",
    ),
    Mutant(
        "two_threads_hand_data_over",
        "17564",
        "the loop overtakes the task with data that arrived later",
        _RECORDER,
        "if self._is_handing_over or not self._to_persist:",
        "if not self._to_persist:",
        f"{_REMOTE}::test_another_threads_writing_takes_ours_along",
    ),
    Mutant(
        "data_behind_the_barrier_is_in_flight",
        "20030",
        "it comes twice after a restore: from the snapshot, and from its producer",
        _RECORDER,
        "if self.last_barrier is not None and not is_before(sequence_number, self.last_barrier[1]):",
        "if False:",
        f"{_REMOTE}::test_what_is_queued_before_the_barrier_is_in_flight",
    ),
    Mutant(
        "an_abort_of_an_older_checkpoint_takes_the_barrier",
        "in flight",
        "the data before a barrier is lost to its checkpoint, because another one was aborted",
        _SUBPARTITION,
        "waiting.barrier.checkpoint_id != checkpoint_id:\n                return\n            self._waiting = None\n",
        "False:\n                return\n            self._waiting = None\n",
        f"{_TIMED}::test_an_abort_of_another_checkpoint_leaves_the_barrier",
    ),
    Mutant(
        "a_timer_of_an_older_checkpoint_fires",
        "in flight",
        "a barrier overtakes before its time, and the data before it is kept for another checkpoint",
        _SUBPARTITION,
        "waiting.barrier.checkpoint_id != checkpoint_id:\n                return\n            # Before anything",
        "False:\n                return\n            # Before anything",
        f"{_TIMED}::test_a_timer_of_an_older_checkpoint_leaves_the_next_barrier",
    ),
    Mutant(
        "a_released_subpartition_leaves_its_snapshot_waiting",
        "in flight",
        "the checkpoint of a task whose consumer is gone never ends",
        _SUBPARTITION,
        "            calls.append(partial(self._waiting.in_flight.complete, (), error))\n",
        "",
        f"{_TIMED}::test_a_barrier_that_nobody_reads_any_more_ends_its_snapshot",
    ),
    # ---------------------------------------------------------------- restore
    Mutant(
        "timers_are_not_restored",
        "restore",
        "windows that were open at the checkpoint never fire",
        _SNAPSHOTS,
        "                ctx.timers.restore(state.timers)\n",
        "                pass\n",
        f"{_OPERATORS}::test_keyed_state_and_timers_are_those_at_the_barrier",
    ),
    Mutant(
        "keyed_state_is_not_restored",
        "restore",
        "a job counts from 0 after a restart",
        _SNAPSHOTS,
        "                    ctx.keyed_state.restore(part)\n",
        "                    pass\n",
        f"{_OPERATORS}::test_keyed_state_and_timers_are_those_at_the_barrier",
    ),
    Mutant(
        "keyed_state_is_taken_after_the_barrier",
        "restore",
        "what records behind the barrier changed is in the snapshot",
        _SNAPSHOTS,
        "else ctx.keyed_state.snapshot(checkpoint_id, is_full=is_full)\n",
        "else (lambda ctx=ctx: ctx.keyed_state.snapshot(0, is_full=is_full)())\n",
        f"{_OPERATORS}::test_keyed_state_and_timers_are_those_at_the_barrier",
    ),
    Mutant(
        "state_of_another_version_is_restored",
        "restore",
        "an operator takes what it cannot read for its state",
        _SNAPSHOTS,
        "            state.check_version(each.name, each.state_version)\n",
        "",
        f"{_OPERATORS}::test_state_of_another_version_is_refused",
    ),
    Mutant(
        "bytes_behind_a_state_are_passed_over",
        "10356",
        "a state that was written together wrongly is restored in part",
        _CODEC,
        "    reader.check_end()\n",
        "",
        f"{_STATES}::test_bytes_behind_a_state_are_refused",
    ),
    Mutant(
        "a_damaged_checkpoint_is_passed_over_in_silence",
        "22502",
        "a job is set back to an older state, and its results come again, although nobody has allowed that",
        _JOB,
        "if self.settings is None or not self.settings.restore_fallback or newest is None:",
        "if self.settings is None or newest is None:",
        f"{_OF_A_JOB}::test_without_the_option_the_job_does_not_go_back",
    ),
    Mutant(
        "one_damaged_checkpoint_blocks_all_recovery",
        "5940",
        "the job ends although the checkpoint before is good, and may be taken",
        _JOB,
        "return self.last_completed_id < restored_id",
        "return False",
        f"{_OF_A_JOB}::test_the_job_goes_back_once_however_many_tasks_cannot_be_restored",
    ),
    Mutant(
        "a_job_goes_back_to_the_states_of_the_damaged_checkpoint",
        "restore",
        "the id is that of the older one, the states are those of the newer one",
        _COMPLETED,
        "self._restored is None or self._restored.checkpoint_id != newest.checkpoint_id:",
        "self._restored is None:",
        f"{_OF_A_JOB}::test_the_job_goes_back_to_the_states_of_the_older_checkpoint",
    ),
)
