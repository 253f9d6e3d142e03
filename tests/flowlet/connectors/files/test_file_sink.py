"""Part files through failures: each interleaving of a kill with a checkpoint is forced, for each format."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flowlet.common.serialization import Encoder
from flowlet.connectors.files.sink import RunningFileSink
from flowlet.datastream.connectors.file_system import (
    BucketAssigner,
    BucketContext,
    FileSink,
    OutputFileConfig,
    RollingPolicy,
)
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.sinks.sink_operator import SinkOperator
from flowlet.testing.harness_environment import SubtaskPlace
from flowlet.testing.input_harnesses import OneInputOperatorHarness
from flowlet.testing.operator_harness import OperatorSnapshot
from tests.flowlet.connectors.files.file_formats import FORMATS, Format, fingerprint
from tests.flowlet.sinks.dealt_out import dealt_out

every_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda each: each.name)
row_formats = pytest.mark.parametrize("fmt", [each for each in FORMATS if each.is_row], ids=lambda each: each.name)


def opened(
    sink: FileSink,
    snapshot: OperatorSnapshot | None = None,
    *,
    place: SubtaskPlace | None = None,
    attempt: int = 0,
    has_zombies: bool = False,
) -> OneInputOperatorHarness:
    if place is None:
        place = SubtaskPlace(attempt=attempt, restored_checkpoint_id=None if snapshot is None else 1)
    harness = OneInputOperatorHarness(
        SinkOperator(RunningFileSink(sink)), place=place, now_ms=1_000, checks_leaks=not has_zombies
    )
    harness.initialize_state(snapshot)
    harness.open()
    return harness


def write(fmt: Format, harness: OneInputOperatorHarness, numbers: Sequence[int]) -> None:
    harness.process_chunk(fmt.records(numbers))


def ended(harness: OneInputOperatorHarness, checkpoint_id: int = 9) -> None:
    """The input ends, and the final checkpoint completes."""
    harness.end_input()
    harness.finish()
    harness.operator.prepare_snapshot_pre_barrier(checkpoint_id)
    harness.operator.snapshot_functions(checkpoint_id, 0)
    harness.operator.notify_checkpoint_complete(checkpoint_id)
    harness.close()


def hidden(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.rglob(".*"))


# -- when files are visible


@every_format
def test_a_file_is_visible_when_its_checkpoint_is_complete(fmt: Format, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    harness = opened(fmt.sink(folder, part_size=1))
    write(fmt, harness, range(3))
    harness.snapshot(1)
    write(fmt, harness, range(3, 5))
    assert fmt.visible(folder) == []

    harness.notify_checkpoint_complete(1)

    assert fmt.visible(folder) == [0, 1, 2]
    ended(harness)
    assert sorted(fmt.visible(folder)) == [0, 1, 2, 3, 4]
    assert hidden(folder) == []


@row_formats
def test_a_file_of_a_row_format_goes_on_over_checkpoints(fmt: Format, tmp_path: Path) -> None:
    harness = opened(fmt.sink(tmp_path))
    for checkpoint_id in (1, 2, 3):
        write(fmt, harness, [checkpoint_id])
        harness.snapshot(checkpoint_id)
        harness.notify_checkpoint_complete(checkpoint_id)
    assert fmt.visible(tmp_path) == []

    ended(harness)

    assert fmt.visible(tmp_path) == [1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 1


@every_format
def test_without_checkpoints_files_are_visible_at_the_end(fmt: Format, tmp_path: Path) -> None:
    harness = opened(fmt.sink(tmp_path), place=SubtaskPlace(has_checkpoints=False))
    write(fmt, harness, range(3))
    harness.end_input()
    assert fmt.visible(tmp_path) == []

    harness.finish()
    harness.close()

    assert fmt.visible(tmp_path) == [0, 1, 2]


@every_format
def test_a_task_that_fails_leaves_no_file_that_no_checkpoint_names(fmt: Format, tmp_path: Path) -> None:
    harness = opened(fmt.sink(tmp_path, part_size=1))
    write(fmt, harness, [1])
    write(fmt, harness, [2])

    harness.close()

    assert list(tmp_path.iterdir()) == []


@row_formats
def test_a_task_that_ends_leaves_a_full_file_whose_beginning_a_checkpoint_names(fmt: Format, tmp_path: Path) -> None:
    """The file was open in the checkpoint, got full behind it, and waits for the next one when the
    task is cancelled.
    """
    harness = opened(fmt.sink(tmp_path, part_size=500))
    write(fmt, harness, [1])
    snapshot = harness.snapshot(1)
    harness.notify_checkpoint_complete(1)
    write(fmt, harness, range(2, 300))
    write(fmt, harness, [300])

    harness.close()
    again = opened(fmt.sink(tmp_path, part_size=500), snapshot, attempt=1)
    write(fmt, again, range(2, 301))
    ended(again)

    assert sorted(fmt.visible(tmp_path)) == list(range(1, 301))
    assert hidden(tmp_path) == []


@every_format
def test_a_subtask_without_records_makes_no_file(fmt: Format, tmp_path: Path) -> None:
    ended(opened(fmt.sink(tmp_path)))

    assert list(tmp_path.iterdir()) == []


# -- kills


class Killed:
    """Attempts of one subtask; a kill leaves files as they are, and the old process goes on for a while."""

    def __init__(self, fmt: Format, folder: Path, part_size: int) -> None:
        self.fmt, self.folder, self.part_size = fmt, folder, part_size
        self.attempt = 0
        self.zombies: list[OneInputOperatorHarness] = []
        self.harness = opened(fmt.sink(folder, part_size), has_zombies=True)

    def kill(self, snapshot: OperatorSnapshot | None) -> None:
        """End this attempt and begin the next one, from a snapshot."""
        self.zombies.append(self.harness)
        self.attempt += 1
        self.harness = opened(
            self.fmt.sink(self.folder, self.part_size), snapshot, attempt=self.attempt, has_zombies=True
        )

    def write(self, numbers: Sequence[int]) -> None:
        write(self.fmt, self.harness, numbers)

    def finish(self) -> list[int]:
        ended(self.harness)
        found = self.fmt.visible(self.folder)
        for each in self.zombies:
            each.close()
        assert self.fmt.visible(self.folder) == found
        return found


@pytest.fixture(params=[1, 10**9], ids=["rolls", "goes on"])
def part_size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@every_format
@pytest.mark.parametrize("is_committed", [False, True], ids=["before its commit", "after its commit"])
def test_a_kill_behind_a_checkpoint(fmt: Format, part_size: int, is_committed: bool, tmp_path: Path) -> None:
    """The restart repeats a commit that has happened."""
    job = Killed(fmt, tmp_path, part_size)
    job.write(range(100))
    complete = job.harness.snapshot(1)
    if is_committed:
        job.harness.notify_checkpoint_complete(1)
    job.write(range(100, 120))

    job.kill(complete)
    job.write(range(100, 150))

    assert fingerprint(job.finish()) == fingerprint(range(150))
    assert hidden(tmp_path) == []


@every_format
@pytest.mark.parametrize("is_notified", [False, True])
def test_two_kills_in_a_row(fmt: Format, part_size: int, is_notified: bool, tmp_path: Path) -> None:
    job = Killed(fmt, tmp_path, part_size)
    job.write(range(100))
    complete = job.harness.snapshot(1)
    if is_notified:
        job.harness.notify_checkpoint_complete(1)
    for _ in range(2):
        job.kill(complete)
        job.write(range(100, 130))
        job.harness.snapshot(2)  # never complete

    job.kill(complete)
    job.write(range(100, 150))

    assert fingerprint(job.finish()) == fingerprint(range(150))
    assert hidden(tmp_path) == []


@every_format
def test_a_kill_before_the_first_checkpoint(fmt: Format, part_size: int, tmp_path: Path) -> None:
    job = Killed(fmt, tmp_path, part_size)
    job.write(range(100))

    job.kill(None)
    job.write(range(150))

    assert fingerprint(job.finish()) == fingerprint(range(150))
    assert hidden(tmp_path) == []


@every_format
def test_a_process_that_lives_on_after_its_restart_changes_nothing(fmt: Format, part_size: int, tmp_path: Path) -> None:
    """The old process writes on, hears of its last checkpoint, and fails at last."""
    job = Killed(fmt, tmp_path, part_size)
    job.write(range(100))
    complete = job.harness.snapshot(1)
    job.kill(complete)
    (zombie,) = job.zombies

    write(fmt, zombie, range(100, 10_000))
    job.write(range(100, 120))
    zombie.notify_checkpoint_complete(1)
    job.harness.snapshot(2)
    zombie.close()
    job.harness.notify_checkpoint_complete(2)
    job.write(range(120, 150))

    assert fingerprint(job.finish()) == fingerprint(range(150))


@every_format
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_another_parallelism(fmt: Format, part_size: int, before: int, after: int, tmp_path: Path) -> None:
    snapshots = []
    for subtask in range(before):
        harness = opened(fmt.sink(tmp_path, part_size), place=SubtaskPlace(subtask, before))
        write(fmt, harness, range(subtask * 100, subtask * 100 + 100))
        snapshots.append(harness.snapshot(1))
        harness.close()

    for subtask, each in enumerate(dealt_out(snapshots, after, SinkOperator(RunningFileSink(fmt.sink(tmp_path))))):
        place = SubtaskPlace(subtask, after, attempt=1, restored_checkpoint_id=1)
        ended(opened(fmt.sink(tmp_path, part_size), each, place=place))

    assert fingerprint(fmt.visible(tmp_path)) == fingerprint(range(before * 100))


def test_files_of_other_subtasks_and_sinks_stay(tmp_path: Path) -> None:
    fmt = FORMATS[0]
    other = opened(fmt.sink(tmp_path), place=SubtaskPlace(1, 2))
    write(fmt, other, [1])
    (tmp_path / ".part-x.inprogress.0123").write_text("of another program")

    ended(opened(fmt.sink(tmp_path), place=SubtaskPlace(0, 2, attempt=5)))

    assert len(hidden(tmp_path)) == 2
    other.close()


# -- errors


def test_a_committed_file_that_is_gone_is_named(tmp_path: Path) -> None:
    fmt = FORMATS[0]
    harness = opened(fmt.sink(tmp_path, part_size=1))
    write(fmt, harness, [1])
    harness.snapshot(1)
    (draft,) = tmp_path.iterdir()
    draft.unlink()

    with pytest.raises(
        FlowletError, match=r"operator 'Sink: Writer' \(subtask 0\): part file .*/part-.* cannot be made visible"
    ):
        harness.notify_checkpoint_complete(1)
    harness.close()


@row_formats
def test_an_open_file_that_lost_its_end_is_named(fmt: Format, tmp_path: Path) -> None:
    harness = opened(fmt.sink(tmp_path))
    write(fmt, harness, range(10))
    complete = harness.snapshot(1)
    harness.close()
    (draft,) = tmp_path.iterdir()
    os.truncate(draft, 3)

    with pytest.raises(FlowletError, match=rf"part file {draft} has lost its end: 3 of the \d+ bytes"):
        opened(fmt.sink(tmp_path), complete, attempt=1)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(
        FlowletError, match=rf"part file {tmp_path}/file/x cannot be written: a part of its path is a file"
    ):
        opened(FORMATS[0].sink(tmp_path / "file" / "x"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowlet.connectors.files.sink.create_draft", lambda path: open("/dev/full", "wb"))  # noqa: SIM115
    fmt = FORMATS[0]
    harness = opened(fmt.sink(tmp_path))
    write(fmt, harness, [1])

    with pytest.raises(
        FlowletError, match=rf"part file {tmp_path}/\.part-.* cannot be written: the disk is full; free space there"
    ):
        harness.snapshot(1)
    with pytest.raises(FlowletError, match="the disk is full"):
        harness.close()


@pytest.mark.parametrize(
    ("number", "explanation"),
    [
        (errno.EACCES, r"user \d+ has no permission; give it"),
        (errno.ELOOP, "its path leads through too many symbolic links; mend that, or let the sink write to another"),
        (errno.EISDIR, "there is a folder in the place of the file; mend that, or let the sink write to another"),
        (errno.ENOTEMPTY, "there is a folder with files in its place; mend that, or let the sink write to another"),
    ],
)
def test_what_the_operating_system_refuses_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, explanation: str
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "makedirs", refused)
    with pytest.raises(FlowletError, match=rf"part file {tmp_path} cannot be written: {explanation}"):
        opened(FORMATS[0].sink(tmp_path))


def test_a_record_without_a_form_is_named_with_its_operator(tmp_path: Path) -> None:
    fmt = FORMATS[2]
    harness = opened(fmt.sink(tmp_path))

    with pytest.raises(
        UserFunctionError, match=r"operator 'Sink: Writer' \(subtask 0\) failed while processing the record \(2, 3\)"
    ):
        harness.process_chunk([(1,), (2, 3)])
    harness.close()


# -- rolling, buckets, names


def text_sink(folder: Path, **policy: int) -> Any:
    builder = FileSink.for_row_format(str(folder), Encoder.simple_string_encoder())
    return builder.with_rolling_policy(RollingPolicy.default_rolling_policy(**policy)).with_bucket_check_interval(10)


def written(sink: Any, *chunks: Sequence[str]) -> None:
    """Write chunks to a sink until its input ends."""
    harness = opened(sink.build())
    for each in chunks:
        harness.process_chunk(each)
    ended(harness)


BASE = BucketAssigner.base_path_bucket_assigner()


def test_a_file_rolls_when_it_is_large_enough(tmp_path: Path) -> None:
    written(text_sink(tmp_path, part_size=4).with_bucket_assigner(BASE), ["aa"], ["bb"], ["cc"])

    assert sorted(each.read_text() for each in tmp_path.iterdir()) == ["aa\nbb\n", "cc\n"]


@pytest.mark.parametrize(
    ("policy", "duration_ms"), [({"rollover_interval": 50}, 50), ({"inactivity_interval": 30}, 40)]
)
def test_a_file_rolls_when_it_is_old_or_idle(tmp_path: Path, policy: dict[str, int], duration_ms: int) -> None:
    harness = opened(text_sink(tmp_path, **policy).with_bucket_assigner(BASE).build())
    harness.process_chunk("a")
    for _ in range(duration_ms // 10):
        harness.advance_processing_time(10)
    harness.process_chunk("b")
    ended(harness)

    assert sorted(each.read_text() for each in tmp_path.iterdir()) == ["a\n", "b\n"]


def test_files_are_numbered_in_their_bucket(tmp_path: Path) -> None:
    config = OutputFileConfig.builder().with_part_prefix("log").with_part_suffix(".txt").build()
    sink = text_sink(tmp_path, part_size=1).with_bucket_assigner(BASE).with_output_file_config(config)
    written(sink, "a", "b", "c")

    names = sorted(each.name for each in tmp_path.iterdir())
    assert [name[-6:] for name in names] == ["-0.txt", "-1.txt", "-2.txt"]
    assert len({name[:-6] for name in names}) == 1
    assert all(name.startswith("log-") and len(name) == len("log--0.txt") + 36 for name in names)


def test_by_default_there_is_a_folder_per_hour(tmp_path: Path) -> None:
    harness = opened(
        text_sink(tmp_path).with_bucket_assigner(BucketAssigner.date_time_bucket_assigner(timezone_id="UTC")).build()
    )
    harness.process_chunk("a")
    harness.set_processing_time(3_600_000)
    harness.process_chunk("b")
    ended(harness)

    found = {each.parent.name: each.read_text() for each in tmp_path.rglob("part-*")}
    assert found == {"1970-01-01--00": "a\n", "1970-01-01--01": "b\n"}


class ByLetter(BucketAssigner):
    """A user's own."""

    def get_bucket_id(self, value: str, context: BucketContext) -> str:
        return f"letter={value[0]}/at={context.timestamp()}"


def test_a_bucket_assigner_of_the_users_own_gets_each_record(tmp_path: Path) -> None:
    harness = opened(text_sink(tmp_path).with_bucket_assigner(ByLetter()).build())
    harness.process_chunk(["ab", "b", "ac"], [1, 1, 1])
    ended(harness)

    found = {str(each.parent.relative_to(tmp_path)): each.read_text() for each in tmp_path.rglob("part-*")}
    assert found == {"letter=a/at=1": "ab\nac\n", "letter=b/at=1": "b\n"}


class Outside(BucketAssigner):
    """Leads where the record says."""

    def get_bucket_id(self, value: str, context: BucketContext) -> str:
        return value


@pytest.mark.parametrize("bucket", ["../x", "/etc", "a/../.."])
def test_a_bucket_outside_of_the_base_path_is_refused(tmp_path: Path, bucket: str) -> None:
    with (
        opened(text_sink(tmp_path).with_bucket_assigner(Outside()).build()) as harness,
        pytest.raises(FlowletError, match="is no folder below"),
    ):
        harness.process_chunk([bucket])
