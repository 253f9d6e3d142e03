"""Shared files: none that a checkpoint needs is given out as unused, in any order of what happens."""

from collections.abc import Iterable
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.checkpoint.jobmanager.checkpoint_history import CompletedCheckpoints
from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology
from flowlet.common.job_settings import CheckpointSettings
from flowlet.messages.job_messages import JobGraphMessage, StateHandle, SubtaskEntry
from flowlet.storage.manifest import CheckpointManifest


class Files:
    """The files of a job that keeps ``num_retained`` checkpoints."""

    def __init__(self, num_retained: int = 1) -> None:
        topology = CheckpointTopology(JobGraphMessage("job", "name", [], []))
        self.store = CompletedCheckpoints(CheckpointSettings(num_retained=num_retained), topology)

    def name(self, checkpoint_id: int, files: Iterable[str]) -> None:
        """A task acknowledges."""
        self.store.name_shared(checkpoint_id, handles(files))

    def complete(self, checkpoint_id: int, files: Iterable[str]) -> list[str]:
        """Add the checkpoint; return the files that are unused then."""
        entry = SubtaskEntry("v", 0, shared=handles(files))
        self.store.add(CheckpointManifest("job", "name", checkpoint_id, 0, {}, [entry]))
        return self.store.take_unused()


def handles(files: Iterable[str]) -> list[StateHandle]:
    return [StateHandle(1, b"sum", path=each) for each in files]


def test_a_file_goes_when_no_kept_checkpoint_names_it() -> None:
    files = Files()

    assert files.complete(1, ["a", "b"]) == []
    assert files.complete(2, ["b", "c"]) == ["a"]
    assert files.store.clear() == [2]
    assert files.complete(3, []) == [], "all are forgotten"


def test_a_file_of_a_checkpoint_that_is_kept_stays() -> None:
    files = Files(num_retained=2)

    assert [files.complete(1, ["a"]), files.complete(2, ["b"]), files.complete(3, ["b"])] == [[], [], ["a"]]


def test_files_of_an_aborted_checkpoint_go_with_the_next_one_that_is_complete() -> None:
    files = Files()
    files.complete(1, ["a"])
    files.name(2, ["a", "aborted"])

    assert files.complete(3, ["a"]) == ["aborted"]


def test_a_late_acknowledgement_of_an_old_checkpoint_shortens_no_life() -> None:
    files = Files()
    files.name(3, ["a"])
    files.name(2, ["a"])

    assert files.complete(3, []) == []


STEP: Final = st.tuples(
    st.sampled_from(["write", "compact", "trigger", "acknowledge", "complete", "abort"]),
    st.integers(0, 255),  # which files stay, or which checkpoint it is
)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    # The number is drawn first: a list without it has six steps on average, and rarely two complete checkpoints.
    steps=st.integers(0, 30).flatmap(lambda number: st.lists(STEP, min_size=number, max_size=number)),
    num_retained=st.integers(1, 3),
)
def test_no_checkpoint_that_is_kept_or_can_still_be_complete_lacks_a_file(
    steps: list[tuple[str, int]], num_retained: int
) -> None:
    """A task's files come and go for good; two checkpoints acknowledge, complete and abort in any order."""
    job = Files(num_retained)
    live, removed, next_file = {"f0"}, set[str](), 1
    pending: dict[int, frozenset[str]] = {}
    kept: dict[int, frozenset[str]] = {}
    next_id = 1
    for action, number in steps:
        if action == "write":
            live.add(f"f{next_file}")
            next_file += 1
        elif action == "compact" and live:
            live = {*(each for place, each in enumerate(sorted(live)) if number >> place % 8 & 1), f"f{next_file}"}
            next_file += 1
        elif action == "trigger" and len(pending) < 2:
            pending[next_id] = frozenset(live)
            assert not removed & live, "it may write them again"
            next_id += 1
        elif pending and action in ("acknowledge", "complete", "abort"):
            chosen = sorted(pending)[number % len(pending)]
            if action != "abort":
                job.name(chosen, pending[chosen])
            if action == "abort":
                del pending[chosen]
            if action == "complete":
                kept[chosen] = pending.pop(chosen)
                pending = {each: files for each, files in pending.items() if each > chosen}
                kept = dict(sorted(kept.items())[-num_retained:])
                removed |= set(job.complete(chosen, kept[chosen]))
        needed = {file for files in [*kept.values(), *pending.values()] for file in files}
        assert not removed & needed
