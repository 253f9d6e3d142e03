"""Records are handed out once no restart can produce them again, each exactly once."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowlet.client.result_buffer import NO_CHECKPOINT, Guarantee, LostResultsError, ResultBuffer

Step = Callable[[ResultBuffer], list[Any] | None]
EXACTLY_ONCE, AT_LEAST_ONCE, NONE = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.NONE


def records(channel: int, name: object, num_bytes: int = 10) -> Step:
    return lambda buffer: buffer.receive(channel, name, num_bytes)


def barrier(channel: int, checkpoint_id: int) -> Step:
    return lambda buffer: buffer.pass_barrier(channel, checkpoint_id)


def ended(channel: int) -> Step:
    return lambda buffer: buffer.end_channel(channel)


def completed(checkpoint_id: int) -> Step:
    return lambda buffer: buffer.complete(checkpoint_id)


def restarted(checkpoint_id: int) -> Step:
    return lambda buffer: buffer.restart(checkpoint_id)


finished: Step = ResultBuffer.finish


def handed_out(buffer: ResultBuffer, *steps: Step) -> list[Any]:
    """Return the records that each step lets go."""
    found = [step(buffer) or [] for step in steps]
    buffer.check_invariants()
    return found


# The steps, and the records that each of them lets go.
EXACTLY: dict[str, tuple[list[Step], list[list[str]]]] = {
    "records that arrive after the news of their checkpoint, which took another way": (
        [completed(1), records(0, "a"), barrier(0, 1), records(0, "b")],
        [[], ["a"], [], []],
    ),
    "a newer checkpoint stands for one that failed": (
        [records(0, "a"), barrier(0, 1), records(0, "b"), barrier(0, 2), records(0, "c"), completed(2), completed(1)],
        [[], [], [], [], [], ["a", "b"], []],
    ),
    "a restart from the beginning drops everything": (
        [records(0, "a"), barrier(0, 1), records(0, "b"), restarted(NO_CHECKPOINT), records(0, "a"), finished],
        [[], [], [], [], [], ["a"]],
    ),
    "a run that was not read and completed nothing does no harm": (
        [records(0, "a"), barrier(0, 4), records(0, "b"), lambda buffer: buffer.restart(4, 3)],
        [[], [], [], ["a"]],
    ),
}


@pytest.mark.parametrize(("steps", "expected"), EXACTLY.values(), ids=EXACTLY)
def test_records_of_one_channel_are_handed_out_exactly_once(steps: list[Step], expected: list[list[str]]) -> None:
    assert handed_out(ResultBuffer(1, EXACTLY_ONCE), *steps) == expected


def test_records_wait_for_the_checkpoint_behind_them_or_the_end_of_the_job() -> None:
    buffer = ResultBuffer(1, EXACTLY_ONCE)

    assert handed_out(buffer, records(0, "a"), records(0, "b"), barrier(0, 1), records(0, "c")) == [[], [], [], []]
    assert buffer.kept_bytes == 30
    assert handed_out(buffer, completed(1)) == [["a", "b"]]
    assert buffer.kept_bytes == 10
    assert handed_out(buffer, ended(0), finished) == [[], ["c"]]
    assert buffer.kept_bytes == 0


def test_each_channel_has_its_own_barrier_and_arrival_order_stays() -> None:
    buffer = ResultBuffer(2, EXACTLY_ONCE)

    handed_out(buffer, records(0, "a0"), records(1, "b0"), barrier(1, 1))
    handed_out(buffer, records(1, "b1"), records(0, "a1"), barrier(0, 1))

    assert handed_out(buffer, completed(1), finished) == [["a0", "b0", "a1"], ["b1"]]


def test_a_restart_drops_what_lies_behind_its_checkpoint() -> None:
    """The other records are handed out, even if the news of the checkpoint had not come yet."""
    buffer = ResultBuffer(2, EXACTLY_ONCE)

    handed_out(buffer, records(0, "a0"), barrier(0, 1), records(0, "a1"))
    handed_out(buffer, records(1, "b0"), barrier(1, 1), records(1, "b1"))

    assert handed_out(buffer, restarted(1)) == [["a0", "b0"]]
    again = records(0, "a1 again"), records(1, "b1 again"), barrier(0, 5), barrier(1, 5), completed(5)
    assert handed_out(buffer, *again) == [[], [], [], [], ["a1 again", "b1 again"]]


def test_all_ended_says_whether_every_channel_of_this_run_has_ended() -> None:
    buffer = ResultBuffer(2, EXACTLY_ONCE)

    buffer.end_channel(0)
    assert not buffer.are_all_ended
    buffer.end_channel(1)
    assert buffer.are_all_ended
    buffer.restart(NO_CHECKPOINT)
    assert not buffer.are_all_ended


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_records_before_the_checkpoint_that_were_not_read_are_an_error(guarantee: Guarantee) -> None:
    buffer = ResultBuffer(3, guarantee)

    handed_out(buffer, barrier(0, 4), ended(1), barrier(2, 3))

    reason = r"from checkpoint 4, and results before it were not read yet \(of the producers 2\)"
    with pytest.raises(LostResultsError, match=reason):
        buffer.restart(4)


def test_a_channel_that_ended_says_nothing_about_runs_that_were_not_read() -> None:
    buffer = ResultBuffer(1, EXACTLY_ONCE)
    buffer.end_channel(0)

    with pytest.raises(LostResultsError, match="producers 0"):
        buffer.restart(4, num_runs=2)


def test_a_restart_from_an_older_checkpoint_than_results_were_handed_out_for_is_an_error() -> None:
    """A JobManager that was started again and did not find the newest checkpoint would let the results come again."""
    buffer = ResultBuffer(1, EXACTLY_ONCE)
    handed_out(buffer, barrier(0, 1), completed(2))

    reason = "restarted from checkpoint 1, and results up to checkpoint 2 were handed out"
    with pytest.raises(LostResultsError, match=reason):
        buffer.restart(1)


def test_a_job_that_may_fall_back_to_an_older_checkpoint_repeats_what_lies_behind_it() -> None:
    """Results wait for their checkpoints again from then on."""
    buffer = ResultBuffer(1, Guarantee.UNLESS_FALLEN_BACK)

    before = handed_out(buffer, barrier(0, 1), completed(1), records(0, "a"), barrier(0, 2), completed(2))
    after = handed_out(buffer, restarted(1), records(0, "a"), barrier(0, 3), completed(3))

    assert before == [[], [], [], [], ["a"]]
    assert after == [[], [], [], ["a"]]


def test_at_least_once_hands_out_at_once_and_repeats() -> None:
    steps = [records(0, "a"), barrier(0, 1), records(0, "b"), restarted(1), records(0, "b"), finished]

    assert handed_out(ResultBuffer(1, AT_LEAST_ONCE), *steps) == [["a"], [], ["b"], [], ["b"], []]


def test_without_checkpoints_a_restart_after_the_first_record_is_an_error() -> None:
    buffer = ResultBuffer(1, NONE)

    assert handed_out(buffer, restarted(NO_CHECKPOINT), records(0, "a")) == [[], ["a"]]
    reason = r"enable checkpoints \(execution.checkpointing.interval\), or no restarts"
    with pytest.raises(LostResultsError, match=reason):
        buffer.restart(NO_CHECKPOINT)


NUM_CHANNELS = 3


class RestartingJob(RuleBasedStateMachine):
    """Channels that emit 0, 1, 2, ... and barriers; the job restarts from any complete checkpoint; its reader must get
    each number once.

    A checkpoint is complete once every channel that has not ended has passed its barrier at the reader; its news may
    come late, or never.
    """

    def __init__(self) -> None:
        super().__init__()
        self.buffer = ResultBuffer(NUM_CHANNELS, EXACTLY_ONCE)
        self.next_number = [0] * NUM_CHANNELS
        self.has_ended = [False] * NUM_CHANNELS
        self.last_barrier = 0
        self.pending: dict[int, dict[int, tuple[int, bool]]] = {}  # by checkpoint: what each channel would restore
        self.completed: tuple[int, Sequence[tuple[int, bool]]] = (NO_CHECKPOINT, [(0, False)] * NUM_CHANNELS)
        self.got: list[list[int]] = [[] for _ in range(NUM_CHANNELS)]

    def take(self, step: Step) -> None:
        for channel, number in step(self.buffer) or []:
            self.got[channel].append(number)

    @rule(channel=st.integers(0, NUM_CHANNELS - 1))
    def emit(self, channel: int) -> None:
        if not self.has_ended[channel]:
            self.take(records(channel, (channel, self.next_number[channel]), 1))
            self.next_number[channel] += 1

    @rule()
    def trigger(self) -> None:
        self.last_barrier += 1
        self.pending[self.last_barrier] = {}

    @rule(channel=st.integers(0, NUM_CHANNELS - 1))
    def pass_barrier(self, channel: int) -> None:
        """The oldest one that this channel has not passed."""
        for checkpoint_id, passed in self.pending.items():
            if channel not in passed:
                passed[channel] = (self.next_number[channel], self.has_ended[channel])
                self.take(barrier(channel, checkpoint_id))
                return

    @rule()
    def complete(self) -> None:
        for checkpoint_id, passed in self.pending.items():
            if len(passed) == NUM_CHANNELS:
                self.completed = (checkpoint_id, [passed[channel] for channel in range(NUM_CHANNELS)])
                self.pending = {other: rest for other, rest in self.pending.items() if other > checkpoint_id}
                return

    @rule()
    def abort_oldest(self) -> None:
        """Abort the oldest checkpoint; its barriers under way may still come or not, which makes no difference to the
        reader.
        """
        if self.pending:
            del self.pending[next(iter(self.pending))]

    @rule()
    def tell_of_completed(self) -> None:
        self.take(completed(self.completed[0]))

    @rule(channel=st.integers(0, NUM_CHANNELS - 1))
    @precondition(lambda self: not all(self.has_ended))
    def end(self, channel: int) -> None:
        self.has_ended[channel] = True
        self.take(ended(channel))

    @rule()
    def restart(self) -> None:
        checkpoint_id, positions = self.completed
        self.pending = {}
        self.next_number = [number for number, _ in positions]
        self.has_ended = [False] * NUM_CHANNELS
        self.take(restarted(checkpoint_id))
        for channel, (_, has_ended) in enumerate(positions):
            if has_ended:
                self.end(channel)

    @invariant()
    def handed_out_is_what_no_restart_repeats(self) -> None:
        self.buffer.check_invariants()
        for channel, (number, _) in enumerate(self.completed[1]):
            assert self.got[channel] == list(range(len(self.got[channel])))
            assert len(self.got[channel]) <= number

    def teardown(self) -> None:
        self.take(finished)
        assert self.got == [list(range(number)) for number in self.next_number]


TestRestartingJob = RestartingJob.TestCase


@given(
    names=st.lists(st.tuples(st.integers(0, 2), st.integers()), max_size=30),
    guarantee=st.sampled_from([AT_LEAST_ONCE, NONE]),
)
def test_without_exactly_once_every_record_is_handed_out_as_it_comes(
    names: list[tuple[int, int]], guarantee: Guarantee
) -> None:
    buffer = ResultBuffer(3, guarantee)

    found = [buffer.receive(channel, name, 1) for channel, name in names]

    assert found == [[name] for _, name in names]
