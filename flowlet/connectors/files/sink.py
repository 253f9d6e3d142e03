"""``FileSinkWriter``: the part files of one subtask of a file sink, by bucket.

``FileSinkCommitter``: gives part files their names once their checkpoint is complete.

``RunningFileSink``: runs a ``FileSink`` in a task.

Side:       task.
Invariants: a bucket has at most one open part file.  In front of a barrier each open part either is closed, durable and
            prepared for its commit, or is durable up to the length that the checkpoint names.  After a restart it goes
            on in a copy of these bytes, because the process that made the file may still write into it.  Committed
            files are durable: folders are fsynced before ``commit`` returns.
Units:      times in milliseconds.
Source:     Flink ``FileWriter``, ``FileWriterBucket``, ``FileWriterBucketState``, ``FileSinkCommittable``.  Flink
            ``FileCommitter``.  Flink ``FileSink``, its side of the tasks.
"""

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import InitVar
from functools import partial
from typing import Any, BinaryIO, Final

from flowlet.common.serialization import Encoder, LineEncoder
from flowlet.common.typeinfo import TypeInformation
from flowlet.connectors.files.api import (
    BasePathBucketAssigner,
    BucketContext,
    DateTimeBucketAssigner,
    FileSink,
)
from flowlet.connectors.files.part_files import (
    CsvWriter,
    DraftOwner,
    EncodedWriter,
    FormatWriter,
    copy_beginning,
    create_draft,
    explained,
    leftovers,
    make_durable,
    make_folder,
    publish,
    remove,
    sync_folders,
)
from flowlet.datastream.connectors.base import (
    CommitRequest,
    Committer,
    CommittingSinkWriter,
    Sink,
    SinkWriterContext,
    StatefulSinkWriter,
    SupportsCommitter,
    SupportsWriterState,
    WriterInitContext,
)
from flowlet.datastream.formats.bulk_formats import CsvWriterFactory, ParquetWriterFactory
from flowlet.errors import FlowletError
from flowlet.records import Chunk
from flowlet.sinks.commit_runner import ChunkWriter
from flowlet.timers.keyed_timer_service import ProcessingTimeService
from flowlet.typed.value_conversion import written_text
from netstack.late import dataclass

MakeFormat = Callable[[BinaryIO], FormatWriter]
_ENCODER_PREVIEW: Final = 80  # characters of a bucket id in an error


@dataclass(frozen=True, slots=True)
class PendingFile:
    """A committable: a file that is complete and durable, and gets its name by the commit."""

    draft: str
    path: str


@dataclass(frozen=True, slots=True)
class StaleFile:
    """A committable: a file that is not needed any more, and is removed by the commit."""

    path: str


@dataclass(frozen=True, slots=True)
class OpenPart:
    """A part of the writer's state: a file that goes on; its first ``num_bytes`` bytes count."""

    bucket_id: str
    draft: str
    num_bytes: int
    created_ms: int


@dataclass(slots=True)
class _Part:
    """An open part file."""

    bucket_id: str
    draft: str
    path: str
    file: BinaryIO
    format: FormatWriter
    created_ms: int
    written_ms: int
    num_former_bytes: int = 0  # written by a former attempt
    is_in_checkpoint: bool = False

    @property
    def num_bytes(self) -> int:
        return self.num_former_bytes + self.format.num_bytes


class _Bucket:
    """A folder: the names of its part files, and the open one."""

    __slots__ = ("number", "part", "uid")

    def __init__(self) -> None:
        self.uid = str(uuid.uuid4())
        self.number = 0
        self.part: _Part | None = None


@dataclass(eq=False, repr=False)
class FileSinkWriter(CommittingSinkWriter[Any], StatefulSinkWriter[Any], ChunkWriter):
    """Writes the part files of one subtask.

    Args:
        sink: as the user has built it.
        make_format: makes the writer of one file.
        attempt: the owner of the drafts.
        clock: for the age of files, and for buckets by time.
        states: of the checkpoint that the job goes on from; the files that they name stay as they are.
    """

    _sink: FileSink
    _make_format: MakeFormat
    _attempt: DraftOwner
    _clock: ProcessingTimeService
    states: InitVar[Sequence[OpenPart]] = ()

    def __post_init__(self, states: Sequence[OpenPart]) -> None:
        self._base = os.path.abspath(self._sink.base_path)
        config = self._sink.file_config
        self._prefix = config.part_prefix
        self._suffix = getattr(self._sink.format, "suffix", "") if config.part_suffix is None else config.part_suffix
        self._buckets: dict[str, _Bucket] = {}
        self._pending: list[_Part] = []  # complete and durable
        self._stale: list[StaleFile] = []
        self._unsynced: set[str] = set()  # folders with new names
        make_folder(self._base)
        # The first attempt of a job has left nothing behind: it is spared the walk through all folders.
        if self._attempt.attempt or self._attempt.restored:
            named = {each.draft for each in states}
            for path in [each for each in leftovers(self._base, self._attempt) if each not in named]:
                remove(path)
        for each in states:
            self._resume(each)
        self._clock.register_timer(self._clock.current_time_ms() + self._sink.check_interval_ms, self._check)

    def __repr__(self) -> str:
        return f"<FileSinkWriter of {self._base}, {len(self._buckets)} buckets, {len(self._pending)} files pending>"

    # -- records

    def write(self, value: Any, context: SinkWriterContext) -> None:
        """Write one record."""
        stamp = context.timestamp()
        self.write_chunk(Chunk([value], None if stamp is None else [stamp]), context)

    def write_chunk(self, chunk: Chunk, context: SinkWriterContext) -> None:
        """Write the records of a chunk.

        Raises:
            BadRecordError: a record has no form in the format.
            FlowletError: a file cannot be written; names it and the remedy.
        """
        now_ms = self._clock.current_time_ms()
        for bucket_id, records in self._by_bucket(chunk, now_ms, context):
            part = self._part_for(bucket_id, now_ms)
            with explained(part.draft, "written"):
                part.format.write(records)
            part.written_ms = now_ms

    def _by_bucket(self, chunk: Chunk, now_ms: int, record: SinkWriterContext) -> Sequence[tuple[str, Chunk]]:
        match self._sink.bucket_assigner:
            case BasePathBucketAssigner():
                return [("", chunk)]
            case DateTimeBucketAssigner() as assigner:
                return [(assigner.bucket_at(now_ms), chunk)]
            case assigner:
                context = BucketContext(now_ms, record.watermark)
                values = chunk.values
                found: dict[str, list[Any]] = {}
                stamps: Sequence[int | None] = chunk.timestamps or [None] * len(values)
                for value, context.record_timestamp in zip(values, stamps, strict=True):
                    found.setdefault(assigner.get_bucket_id(value, context), []).append(value)
                return [(bucket_id, chunk if len(found) == 1 else Chunk(each)) for bucket_id, each in found.items()]

    def _part_for(self, bucket_id: str, now_ms: int) -> _Part:
        bucket = self._buckets.get(bucket_id)
        if bucket is None:
            self._folder_of(bucket_id)  # also checks it
            bucket = self._buckets[bucket_id] = _Bucket()
        if bucket.part is not None and self._sink.rolling_policy.rolls_on_size(bucket.part.num_bytes):
            self._end(bucket, bucket.part)
        return self._begin(bucket_id, bucket, now_ms) if bucket.part is None else bucket.part

    def _begin(self, bucket_id: str, bucket: _Bucket, created_ms: int, former: OpenPart | None = None) -> _Part:
        """Begin a part file of the bucket, with a new draft; ``former``: copy the part of a former attempt into it."""
        folder = self._folder_of(bucket_id)
        self._make_folder(folder)
        name = f"{self._prefix}-{bucket.uid}-{bucket.number}{self._suffix}"
        bucket.number += 1
        draft = os.path.join(folder, self._attempt.draft_name(name))
        file = create_draft(draft)
        try:
            if former is not None:
                copy_beginning(former.draft, former.num_bytes, file, draft)
            with explained(draft, "written"):
                made = self._make_format(file)
        except BaseException:
            file.close()
            remove(draft)
            raise
        now_ms = self._clock.current_time_ms()
        num_bytes = 0 if former is None else former.num_bytes
        path = os.path.join(folder, name)
        part = bucket.part = _Part(bucket_id, draft, path, file, made, created_ms, now_ms, num_bytes)
        return part

    def _folder_of(self, bucket_id: Any) -> str:
        folder = os.path.normpath(os.path.join(self._base, bucket_id)) if isinstance(bucket_id, str) else ""
        if folder != self._base and not folder.startswith(self._base.rstrip("/") + "/"):
            raise FlowletError(
                f"the bucket {bucket_id!r:.{_ENCODER_PREVIEW}} is no folder below {self._base}: return a relative path"
            )
        return folder

    def _make_folder(self, folder: str) -> None:
        make_folder(folder)
        while True:
            self._unsynced.add(folder)
            if folder == self._base:
                break
            folder = os.path.dirname(folder)

    # -- the ends of files

    def _open_parts(self) -> list[tuple[_Bucket, _Part]]:
        return [(bucket, bucket.part) for bucket in self._buckets.values() if bucket.part is not None]

    def _end(self, bucket: _Bucket, part: _Part) -> None:
        """Complete the open part of a bucket."""
        with explained(part.draft, "written"):
            part.format.end()
        make_durable(part.file, part.draft)
        bucket.part = None  # not before: close() must see it
        part.file.close()
        self._pending.append(part)

    def _check(self, _: int) -> None:
        """Complete files that are old or idle; runs every ``check_interval_ms``."""
        now_ms = self._clock.current_time_ms()
        for bucket, part in self._open_parts():
            if self._sink.rolling_policy.rolls_on_time(now_ms - part.created_ms, now_ms - part.written_ms):
                self._end(bucket, part)
        self._clock.register_timer(now_ms + self._sink.check_interval_ms, self._check)

    def flush(self, *, end_of_input: bool) -> None:
        """Complete the files that do not go on behind the barrier; at the end, all."""
        for bucket, part in self._open_parts():
            if end_of_input or self._sink.rolling_policy.rolls_on_checkpoint(part.num_bytes):
                self._end(bucket, part)

    def prepare_commit(self) -> Sequence[PendingFile | StaleFile]:
        """The files that are complete, and the files that are not needed once this checkpoint is complete."""
        self._sync()
        prepared: list[PendingFile | StaleFile] = [PendingFile(each.draft, each.path) for each in self._pending]
        prepared += self._stale
        self._pending = []
        self._stale = []
        # A bucket that got no record since the last checkpoint; its next file has another name, as in Flink.
        self._buckets = {bucket_id: each for bucket_id, each in self._buckets.items() if each.part is not None}
        return prepared

    def snapshot_state(self, checkpoint_id: int) -> Sequence[OpenPart]:
        """The files that go on, durable as they are."""
        found = []
        for _, part in self._open_parts():
            make_durable(part.file, part.draft)
            part.is_in_checkpoint = True
            found.append(OpenPart(part.bucket_id, part.draft, part.num_bytes, part.created_ms))
        self._sync()
        return found

    def _sync(self) -> None:
        folders = self._unsynced
        self._unsynced = set()
        sync_folders(folders)

    def close(self) -> None:
        """Close all files; remove drafts that no checkpoint can name."""
        parts = [part for _, part in self._open_parts()]
        unnamed = [part.draft for part in (*self._pending, *parts) if not part.is_in_checkpoint]
        self._buckets = {}
        self._pending = []
        try:
            for part in parts:
                part.format.drop()
                with explained(part.draft, "closed"):
                    part.file.close()
        finally:
            for path in unnamed:
                remove(path)

    # -- after a restart

    def _resume(self, state: OpenPart) -> None:
        """Go on with an open part of a former attempt, in a copy."""
        bucket = self._buckets.get(state.bucket_id)
        if bucket is None:
            bucket = self._buckets[state.bucket_id] = _Bucket()
        elif bucket.part is not None:
            self._end(bucket, bucket.part)  # two former subtasks had one each
        self._begin(state.bucket_id, bucket, state.created_ms, state)
        if self._attempt.made(state.draft):  # else it is of another job, whose checkpoints stay as they are
            self._stale.append(StaleFile(state.draft))


class FileSinkCommitter(Committer[PendingFile | StaleFile]):
    """Publishes pending files, and removes stale ones; idempotent."""

    def commit(self, requests: Sequence[CommitRequest[PendingFile | StaleFile]]) -> None:
        """Publish and remove.  Raises FlowletError: a file is missing, or the operating system refuses."""
        folders = set()
        for request in requests:
            committable = request.get_committable()
            match committable:
                case PendingFile(draft=draft, path=path):
                    publish(draft, path)
                    folders.add(os.path.dirname(path))
                case StaleFile(path=path):
                    remove(path)
        sync_folders(folders)  # once per folder, after all its files have their names


class RunningFileSink(Sink, SupportsCommitter, SupportsWriterState):
    """Makes the writers and committers of a file sink.

    Args:
        sink: as the user has built it.
        type_info: the declared type of its records; None: there is none.
    """

    def __init__(self, sink: FileSink, type_info: TypeInformation | None = None) -> None:
        self._sink = sink
        self._type_info = type_info

    def create_writer(self, context: WriterInitContext) -> FileSinkWriter:
        """The writer of a subtask."""
        return self.restore_writer(context, [])

    def restore_writer(self, context: WriterInitContext, recovered_state: Sequence[Any]) -> FileSinkWriter:
        """The writer of a subtask that goes on from a checkpoint."""
        clock = context.get_processing_time_service()
        return FileSinkWriter(self._sink, self._make_format(), DraftOwner.of(context), clock, recovered_state)

    def create_committer(self, context: WriterInitContext) -> Committer[Any]:
        """The committer of a subtask."""
        return FileSinkCommitter()

    def _make_format(self) -> MakeFormat:
        match self._sink.format:
            case LineEncoder() as encoder:
                return partial(EncodedWriter, encoder.with_text(written_text(self._type_info)))
            case Encoder() as encoder:
                return partial(EncodedWriter, encoder)
            case CsvWriterFactory(schema=schema):
                return partial(CsvWriter, schema)
            case ParquetWriterFactory() as factory:
                return partial(_parquet_writer, factory)
            case other:
                raise FlowletError(
                    f"a file sink cannot write with a {type(other).__name__}; use ParquetBulkWriters or CsvBulkWriters"
                )


def _parquet_writer(factory: ParquetWriterFactory, file: BinaryIO) -> FormatWriter:
    # With it comes pyarrow, which most jobs do without.
    from flowlet.connectors.files.parquet_writer import ParquetFormatWriter

    return ParquetFormatWriter(factory, file)
