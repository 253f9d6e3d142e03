"""The names of part files on disk, and each step of their life: draft, durable, published, or removed.

``FormatWriter``: writes the records of one part file; ``EncodedWriter``: with an ``Encoder``; ``CsvWriter``: as CSV.

Hot path, per chunk: one call of the encoder, or of ``csv.writer.writerows``, and one write (bench: sinks).

``explained``: the error that a user reads when the operating system refuses a part file.

Side:       task.
Source:     Flink ``BulkWriter``, ``RowWisePartWriter``, ``CsvBulkWriter``.  Flink ``LocalRecoverableWriter``,
            ``RecoverableFsDataOutputStream``.
Invariants: a draft has a name that no other attempt gives to a file, and only the attempt that made it writes into it.
            The bytes of a draft that a checkpoint names were fsynced before, and so was its folder.  A published file
            is never written again.
"""

import csv
import errno
import hashlib
import io
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, BinaryIO, Final, Self

from flowlet.common.serialization import Encoder
from flowlet.common.types import fields_of_records
from flowlet.common.values.field_values import is_missing
from flowlet.datastream.connectors.base import WriterInitContext
from flowlet.datastream.formats.bulk_formats import CsvColumn, CsvSchema, csv_dialect
from flowlet.errors import FlowletError
from flowlet.records import Chunk
from flowlet.sinks.commit_runner import BadRecordError
from flowlet.storage.storage_files import explanation, sync_folder_at
from netstack.late import dataclass

_BOOLEANS: Final = {True: "true", False: "false"}  # 1 and 0 are equal to them
_OTHER_ENDS: Final = {"\n": "\r", "\r": "\n"}
_NAT: Final = re.compile("NaT").search  # faster than ``in``


class FormatWriter(ABC):
    """Writes into an open file, which it does not close.

    ``num_bytes``: the bytes given to the file so far; 0 for a format that does not roll by size.
    """

    num_bytes: int = 0

    @abstractmethod
    def write(self, chunk: Chunk) -> None:
        """Write the records.  Raises BadRecordError: a record has no form in this format."""

    def end(self) -> None:  # noqa: B027 - nothing follows the last record of most formats
        """Write the bytes that must stand at the end of the file."""

    def drop(self) -> None:  # noqa: B027 - most formats hold nothing
        """Release the writer's resources, without ``end``: the file is of no use, or goes on elsewhere."""


class EncodedWriter(FormatWriter):
    """Appends the records as an encoder encodes them."""

    def __init__(self, encoder: Encoder, file: BinaryIO) -> None:
        self._encoder = encoder
        self._file = file

    def write(self, chunk: Chunk) -> None:
        """Append the records."""
        values = chunk.values
        try:
            data = self._encoder.encode_all(values)
        except Exception as error:  # noqa: BLE001 - a user's code
            raise blamed(values, self._encoder.encode, error)  # noqa: B904 - it has its cause
        self._file.write(data)
        self.num_bytes += len(data)


class CsvWriter(FormatWriter):
    """Appends lines of CSV."""

    def __init__(self, schema: CsvSchema, file: BinaryIO) -> None:
        self._schema = schema
        self._file = file
        self._names = [each.name for each in schema.columns]
        self._bytes = re.compile(f"b{re.escape(schema.escape_char or '')}['\"]").search
        self._null_is_number = _is_number(schema.null_value)
        self._is_plain = not schema.null_value and not any(
            each.is_boolean or each.separator is not None for each in schema.columns
        )
        if schema.uses_header:
            file.write(self._lines([[each.name for each in schema.columns]]))

    def write(self, chunk: Chunk) -> None:
        """Append the records."""
        values = chunk.values
        try:
            data = self._lines(self._fields_of(values))
        except Exception as error:  # noqa: BLE001 - ``str`` of a user's object
            raise blamed(values, lambda value: self._lines(self._fields_of([value])), error)  # noqa: B904 - as above
        self._file.write(data)

    def _fields_of(self, records: Sequence[Any]) -> Iterable[Iterable[Any]]:
        fields = fields_of_records(records, self._names)
        if self._is_plain:
            return fields
        columns = zip(*fields, strict=True)
        return zip(*map(self._texts, self._schema.columns, columns), strict=True)

    def _texts(self, column: CsvColumn, values: Sequence[Any]) -> list[Any]:
        null = self._schema.null_value
        if column.is_boolean:
            return [null if each is None else _boolean(each, column.name) for each in values]
        if column.separator is not None:
            return [null if each is None else _joined(each, column, null) for each in values]
        if null and (null in (map(str, values) if self._null_is_number else values)):
            raise ValueError(
                f"column {column.name!r}: a value is {null!r}, which stands for None: use another set_null_value()"
            )
        return [null if each is None else each for each in values]

    def _lines(self, rows: Iterable[Iterable[Any]]) -> bytes:
        end = self._schema.line_separator
        text = io.StringIO(newline="")
        rows = rows if isinstance(rows, Sequence) else list(rows)
        self._csv_writer(text, end).writerows(rows)
        data = text.getvalue()
        other = _OTHER_ENDS.get(end)
        # Before Python 3.13 only the characters of the line end are quoted, so both are given.
        if other is not None and other in data:
            lines: list[str] = []
            self._csv_writer(SimpleNamespace(write=lines.append), "\r\n").writerows(rows)  # writes once per line
            data = "".join([line[:-2] + end for line in lines])
        # Parts of the lines may look like ``str`` of a value without a text; single characters are found fast.
        has_quotes = "'" in data or '"' in data
        if (has_quotes and self._bytes(data) is not None) or "<" in data or _NAT(data) is not None:
            for row in rows:
                for name, value in zip(self._names, row, strict=True):
                    check_has_text(value, name)
        return data.encode()

    def _csv_writer(self, file: Any, line_end: str) -> Any:
        schema = self._schema
        dialect = csv_dialect(schema.column_separator, schema.quote_char, schema.escape_char)
        return csv.writer(file, lineterminator=line_end, **dialect)


def check_has_text(value: Any, name: str) -> None:
    """Refuse a value whose ``str`` is no text of it: bytes, and pandas' objects for missing values."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise ValueError(f"column {name!r}: CSV has no form for bytes: decode them in map(), or use their base64")
    if is_missing(value):
        raise ValueError(f"column {name!r}: {value!r} of type {type(value).__name__} is no value: use None")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _boolean(value: Any, name: str) -> str:
    try:
        return _BOOLEANS[value]
    except (KeyError, TypeError):
        raise ValueError(f"column {name!r}: {value!r} of type {type(value).__name__} is no boolean") from None


def _joined(values: Iterable[Any], column: CsvColumn, null: str) -> str:
    """The elements of an array as one field, which can be split again."""
    separator = column.separator or ""
    texts = []
    for each in values:
        check_has_text(each, column.name)
        if each is None:
            texts.append(null)
        elif type(each).__name__ in {"bool", "bool_"}:  # of Python or numpy
            texts.append(_BOOLEANS[each])
        else:
            texts.append(str(each))
    text = separator.join(texts)
    if texts and text.split(separator) != texts:
        raise ValueError(
            f"column {column.name!r}: {values!r} has {separator!r} in an element: give add_array_column() another "
            "separator"
        )
    return text


def blamed(values: Sequence[Any], write_one: Any, error: Exception) -> Exception:
    """The error about the first record that cannot be written alone; if each can, the error of all together."""
    for value in values:
        try:
            write_one(value)
        except Exception as its_error:  # noqa: BLE001 - becomes the cause
            blamed = BadRecordError(value)
            blamed.__cause__ = its_error
            return blamed
    return error


_ELSEWHERE: Final = "let the sink write to another folder"
_OWN_SENTENCES: Final = {
    errno.ENOENT: ("the file or its folder does not exist", "was it removed, or is a mount missing? Put it back"),
    errno.ENOTDIR: ("a part of its path is a file instead of a folder", "remove that, or {elsewhere}"),
    errno.EEXIST: ("there is a file in the place of the folder", "remove that, or {elsewhere}"),
    # Unlike the store of checkpoints, a sink follows symbolic links, and removes no folder.
    errno.ELOOP: ("its path leads through too many symbolic links", "mend that, or {elsewhere}"),
    errno.EISDIR: ("there is a folder in the place of the file", "mend that, or {elsewhere}"),
    errno.ENOTEMPTY: ("there is a folder with files in its place", "mend that, or {elsewhere}"),
    errno.EMFILE: ("this process has too many open files", "raise the limit (ulimit -n), or use fewer buckets"),
    errno.ENAMETOOLONG: ("its path is too long", "use a shorter prefix, suffix or bucket"),
}


@contextmanager
def explained(path: str, done: str) -> Iterator[None]:
    """Raise an OSError of the block as a FlowletError that names the file and says what to do.

    ``done``: the step that failed, such as "written".
    """
    try:
        yield
    except OSError as error:
        cause, advice = explanation(error, _ELSEWHERE, _OWN_SENTENCES)
        raise FlowletError(f"part file {path} cannot be {done}: {cause}; {advice}") from error


_DRAFT: Final = re.compile(
    r"\..+\.inprogress\.(?P<owner>[0-9a-f]{12})(?P<subtask>[0-9a-f]{4})(?P<restored>[0-9a-f]{8})(?P<attempt>[0-9a-f]{4})[0-9a-f]{4}"
)
_COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DraftOwner:
    """The owner of drafts: one attempt of a subtask of a sink.

    ``owner``: 12 hex digits of the job and the operator.  ``restored``: one more than the number of the checkpoint that
    the attempt began with; 0: it began with none.
    """

    owner: str
    subtask: int
    restored: int
    attempt: int

    @classmethod
    def of(cls, context: WriterInitContext) -> Self:
        """The attempt of a subtask."""
        sink = context.get_job_id().encode() + context.operator_id
        restored = context.get_restored_checkpoint_id()
        return cls(
            hashlib.blake2b(sink, digest_size=6).hexdigest(),
            context.get_index_of_this_subtask() & 0xFFFF,
            0 if restored is None else (restored + 1) & 0xFFFFFFFF,
            context.get_attempt_number() & 0xFFFF,
        )

    def draft_name(self, name: str) -> str:
        """A new name for a draft of the part file ``name``."""
        run = f"{self.subtask:04x}{self.restored:08x}{self.attempt:04x}"
        return f".{name}.inprogress.{self.owner}{run}{secrets.token_hex(2)}"

    def is_left_by_a_former_one(self, file_name: str) -> bool:
        """Whether a file is the draft of an attempt of this subtask that ended before this one began."""
        found = _DRAFT.fullmatch(file_name)
        if found is None or found["owner"] != self.owner or int(found["subtask"], 16) != self.subtask:
            return False
        # Another run of the JobManager may count attempts anew, but goes on from a newer checkpoint.
        return (int(found["restored"], 16), int(found["attempt"], 16)) < (self.restored, self.attempt)

    def made(self, draft: str) -> bool:
        """Whether a draft was made by an attempt of this sink in this job."""
        found = _DRAFT.fullmatch(os.path.basename(draft))
        return found is not None and found["owner"] == self.owner


def make_folder(path: str) -> None:
    """Create a folder, if it is missing."""
    with explained(path, "written"):
        os.makedirs(path, exist_ok=True)


def create_draft(path: str) -> BinaryIO:
    """A new file, opened for writing."""
    with explained(path, "written"):
        return open(path, "xb")


def make_durable(file: BinaryIO, path: str) -> None:
    """Write the bytes that wait in memory, and wait for the disk."""
    with explained(path, "written"):
        file.flush()
        os.fsync(file.fileno())


def sync_folders(paths: Iterable[str]) -> None:
    """Make the names in folders durable."""
    for path in sorted(set(paths)):
        with explained(path, "written"):
            sync_folder_at(path)


def publish(draft: str, path: str) -> None:
    """Give a draft its name; do nothing if it has that name already.

    Raises:
        FlowletError: neither the draft nor the file exists; or the operating system refuses.
    """
    with explained(path, "made visible"):
        try:
            os.replace(draft, path)
        except FileNotFoundError:
            if not os.path.exists(path):
                raise FlowletError(
                    f"part file {path} cannot be made visible: neither it nor {draft} exists; was the file removed, or "
                    "is a mount missing? Put it back"
                ) from None


def copy_beginning(source: str, num_bytes: int, file: BinaryIO, path: str) -> None:
    """Copy the first bytes of a file, to which a former attempt may still append, into another file.

    Raises:
        FlowletError: the source is missing, or is shorter.
    """
    with explained(source, "read"):
        old = open(source, "rb", buffering=0)  # noqa: SIM115 - closed below; only the call itself is explained
    with old:
        rest = num_bytes
        while rest:
            with explained(source, "read"):
                block = old.read(min(rest, _COPY_BYTES))
            if not block:
                raise FlowletError(
                    f"part file {source} has lost its end: {num_bytes - rest} of the {num_bytes} bytes of the "
                    "checkpoint are left; put the original back"
                )
            with explained(path, "written"):
                file.write(block)
            rest -= len(block)


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    with explained(path, "removed"):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


def leftovers(base_path: str, attempt: DraftOwner) -> Iterator[str]:
    """The drafts that former attempts of a subtask have left below a folder."""
    for folder, _, names in os.walk(base_path):
        for name in names:
            if attempt.is_left_by_a_former_one(name):
                yield os.path.join(folder, name)
