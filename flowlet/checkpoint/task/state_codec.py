"""The bytes of a subtask's state.

Side:       shared.  Blocking: called on threads of a pool, and on the task thread before the operators open.
Rules:      the pickler and the unpickler are C and keep the interpreter's lock.  The files that they write to and read
            from are memory behind methods in Python: a call of one, once per frame of 64 KiB, lets other threads run.
            While a dict of a million tuples was pickled by ``pickle.dumps``, the other threads stood still for 1.4 s;
            so written, for at most 0.27 s, on a busy machine, and the whole took 1.5 s.
Invariants: only what a verified handle describes may be decoded: it is unpickled.
Format:     magic number (4 bytes), version (u16), size of the head (u32), the head (MessagePack), then all parts one
            after the other.  A part is the pickle (protocol 5) of one operator's state; large arrays follow their
            pickle as they are.  Classes that go by value are written as ``former_classes`` says.
Absent:     data in flight, see ``channel_state_writer``.
"""

import pickle
from collections.abc import Mapping
from contextlib import nullcontext
from types import FunctionType, ModuleType
from typing import Any, Final

import msgspec

from flowlet.checkpoint.task.snapshots import HeadedBytes, OperatorState, SubtaskState
from flowlet.errors import SerdeError, StateRestoreError
from flowlet.keys.key_columns import column_key_groups
from flowlet.serde.deploy_blobs import OPENING
from flowlet.serde.pickles.former_classes import (
    FormCollector,
    FormerClassError,
    FormerUnpickler,
    FormPickler,
    RunningClasses,
    defines_classes,
)
from flowlet.serde.pickles.program_pickle import PickleWriter
from flowlet.serde.pickles.record_pickle import classes_found_by, names_what_goes_by_value
from flowlet.state.state_snapshots import KeyedStateSnapshot
from netstack.late import dataclass


@dataclass(eq=False, slots=True)
class PickleReader:
    """A file of one pickle for the unpickler; a read beyond its end is cut off, as in a file."""

    _rest: memoryview

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        # As bytes: the unpickler takes nothing else.
        taken, self._rest = self._rest[:size], self._rest[size:]
        return bytes(taken)

    def readinto(self, target: memoryview) -> int:
        """Write the next bytes into ``target``; returns how many."""
        size = min(len(target), len(self._rest))
        target[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def readline(self) -> bytes:
        """Return the next line; the unpickler wants this method, and calls it only for pickles of old protocols."""
        end = bytes(self._rest).find(b"\n") + 1
        return self.read(end or len(self._rest))


_PROTOCOL: Final = 5
_MIN_BUFFER_BYTES: Final = 4096  # smaller arrays stay in the pickle; not measured


class _Part(msgspec.Struct, frozen=True):
    """Sizes of one part's pickle, and of the arrays behind it."""

    pickle_size: int
    buffer_sizes: list[int]


class _Operator(msgspec.Struct, frozen=True):
    """One operator: how its part is read."""

    operator_id: str
    part: _Part
    state_version: int


class _Head(msgspec.Struct, frozen=True):
    """The list of the parts, in their order in the bytes."""

    operators: list[_Operator]
    is_finished: bool


_BYTES: Final = HeadedBytes(b"FLST", msgspec.msgpack.Decoder(_Head), "state", "state of a subtask")


def encode_state(state: SubtaskState, names: Mapping[str, str] | None = None) -> bytes:
    """Encode a subtask's state, without the data in flight.

    Args:
        state: of the subtask.
        names: of the operators by their ids, for people.

    Raises:
        SerdeError: a part cannot be pickled; the message names the operator.
    """
    pieces: list[bytes | memoryview] = []
    operators = []
    for operator_id, each in state.operators.items():
        part = _write_part((each.own, each.timers, each.keyed, each.by_subtask), _what(operator_id, names), pieces)
        # Sizes alone: the head is written in front, when all parts are known.
        operators.append(_Operator(operator_id, part, each.version))
    return _BYTES.joined(_Head(operators, state.is_finished), pieces)


def decode_state(
    content: bytes, names: Mapping[str, str] | None = None, classes: RunningClasses | None = None
) -> SubtaskState:
    """Decode a subtask's state; its arrays can be written to and share no memory with ``content``.

    Args:
        content: what ``encode_state`` gave, also in another program.
        names: of the operators by their ids, for people.
        classes: of the program that runs, if another one has written the state; None: classes are as they were written.

    Raises:
        StateRestoreError: the bytes are of another version, or name what does not exist here; the message names
            operator and class.
    """
    head, position = _BYTES.head_of(content)
    reader = _PartReader(memoryview(content), position, classes)
    operators = {}
    for each in head.operators:
        what = _what(each.operator_id, names)
        own, timers, keyed, by_subtask = reader.read(each.part, what)
        # Keys of another program's classes may hash otherwise now: their groups would be other ones.
        if classes is not None and classes.are_used and isinstance(keyed, KeyedStateSnapshot):
            _check_key_groups(keyed, what)
        operators[each.operator_id] = OperatorState(own, timers, each.state_version, keyed, by_subtask)
    # State that was joined wrongly must not be restored in part.
    reader.check_end()
    return SubtaskState(operators, is_finished=head.is_finished)


def operator_sizes(content: bytes) -> dict[str, int]:
    """Return how many bytes the state of each operator has, by operator id; unpickles nothing.

    Raises StateRestoreError.
    """
    head, _ = _BYTES.head_of(content)
    return {each.operator_id: each.part.pickle_size + sum(each.part.buffer_sizes) for each in head.operators}


def _what(operator_id: str, names: Mapping[str, str] | None) -> str:
    name = None if names is None else names.get(operator_id)
    return f"the state of operator {operator_id}" if name is None else f"the state of operator {name!r}"


def _write_part(value: object, what: str, pieces: list[bytes | memoryview]) -> _Part:
    try:
        pickled, buffers = _dump(pickle.Pickler, value)
        # Fast path: without classes that go by value the pickler in C is enough; ours calls Python per instance.
        if any(map(names_what_goes_by_value, pickled)):
            pickled, buffers = _dump(FormPickler, value)
    except Exception:  # noqa: BLE001 - for example a lambda: cloudpickle can pickle it, or says why not
        try:
            pickled, buffers = _dump(FormPickler, value)
        except Exception as error:
            raise SerdeError(
                f"{what} cannot be pickled: {type(error).__name__}: {error}; keep in state only values that can be "
                "pickled, and make the others in open()"
            ) from error
    # Only when all has gone well: a first attempt that failed half-way leaves no piece.
    pieces += [*pickled, *buffers]
    return _Part(sum(map(len, pickled)), [each.nbytes for each in buffers])


def _dump(pickler: type[pickle.Pickler], value: object) -> tuple[list[bytes], list[memoryview]]:
    """Pickle a value; returns the pickle in pieces, and the memory of large arrays, which is not copied."""
    buffers: list[memoryview] = []

    def keep_in_pickle(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        # A view of its own costs more than the copy of a small array.
        if raw.nbytes < _MIN_BUFFER_BYTES:
            return True
        buffers.append(raw)
        return False

    file = PickleWriter()
    pickler(file, _PROTOCOL, buffer_callback=keep_in_pickle).dump(value)
    return file.pieces, buffers


@dataclass(eq=False, slots=True)
class _PartReader:
    """Reads one part after the other."""

    _content: memoryview
    _position: int
    _classes: RunningClasses | None

    def read(self, part: _Part, what: str) -> Any:
        """Unpickle the value of the next part."""
        pickled = self._take(part.pickle_size, what)
        buffers = [self._take(size, what) for size in part.buffer_sizes]
        try:
            with nullcontext() if self._classes is None else classes_found_by(self._classes.by_reference):
                return self._load(pickled, buffers, what)
        except FormerClassError as error:
            raise StateRestoreError(f"{what}{_in_states(pickled, buffers, error.qualname)}: {error}") from error
        # It names the operator already.
        except StateRestoreError:
            raise
        except Exception as error:
            raise StateRestoreError(
                f"{what} cannot be read: {type(error).__name__}: {error}; was one of its classes changed?"
            ) from error

    def _load(self, pickled: memoryview, buffers: list[memoryview], what: str) -> Any:
        forms = None
        # Read twice: the first pass only collects the classes that go by value.
        if self._classes is not None and defines_classes(pickled):
            collector = FormCollector(PickleReader(pickled), list(map(bytearray, buffers)))
            with OPENING:
                collector.load()
            forms = collector.forms()
        # Buffers are copied each time: arrays of bytes could not be written to.
        copies = list(map(bytearray, buffers))
        unpickler = _NamingUnpickler(PickleReader(pickled), self._classes, forms, copies)
        unpickler.what = what
        return unpickler.load()

    def check_end(self) -> None:
        """Check that no bytes follow.  Raises StateRestoreError: more do."""
        if self._position != len(self._content):
            raise StateRestoreError(
                f"{len(self._content) - self._position} bytes follow the state; restore another checkpoint"
            )

    def _take(self, size: int, what: str) -> memoryview:
        end = self._position + size
        # Sizes come from the head: a damaged one must not read beyond the bytes.
        if not self._position <= end <= len(self._content):
            raise StateRestoreError(f"{what} is cut off: {size} bytes are expected; restore another checkpoint")
        taken = self._content[self._position : end]
        self._position = end
        return taken


class _NamingUnpickler(FormerUnpickler):
    """An unpickler whose error names the operator that needs a class which does not exist here."""

    what = ""  # set before it reads: the part

    def find_class(self, module: str, name: str) -> Any:
        """Find the class or function; its module is imported if need be."""
        try:
            with OPENING:
                return super().find_class(module, name)
        except Exception as error:
            raise StateRestoreError(
                f"{self.what} needs {module}.{name}, which this process does not find ({type(error).__name__}: "
                f"{error}): keep the class where it was when the checkpoint was taken, or start without the checkpoint"
            ) from error


def _check_key_groups(keyed: KeyedStateSnapshot, what: str) -> None:
    """Check that each key is still in the key group that it was written with.

    Raises StateRestoreError: it is not, because the classes of the running program make other keys of the stored ones.
    """
    for group, states in keyed.groups.items():
        for name, rows in states.items():
            known = isinstance(rows.keys, list | tuple)
            if known and set(column_key_groups(rows.keys, keyed.max_parallelism)) - {group}:
                raise StateRestoreError(
                    f"{what}, {name!r}: the class of its keys has another name, or other fields that count for ==, "
                    "than when they were "
                    "written, so that they would be other keys; keep both, or start without the state"
                )


class _FindsClass(pickle.Pickler):
    """A pickler that finds out whether the pickled object refers to a class of this name."""

    def __init__(self, qualname: str) -> None:
        super().__init__(PickleWriter(), _PROTOCOL)
        self._qualname = qualname
        self.has_found = False

    def reducer_override(self, obj: Any) -> Any:
        """Note a class of this name; pickle each class, function and module as an empty function in its place."""
        if obj is _nothing:
            return NotImplemented
        if isinstance(obj, type):
            self.has_found |= obj.__qualname__ == self._qualname
            return _nothing, ()
        return (_nothing, ()) if isinstance(obj, FunctionType | ModuleType) else NotImplemented


def _nothing() -> None:
    return None


def _in_states(pickled: memoryview, buffers: list[memoryview], class_name: str) -> str:
    """List the names of the states that hold instances of a class, for a message; empty if they cannot be told."""
    try:
        with OPENING:
            # Read once more, and without the running classes, one of which has just failed.
            copies = list(map(bytearray, buffers))
            _, timers, keyed, by_subtask = FormerUnpickler(PickleReader(pickled), None, None, copies).load()
        found = [] if not _refers_to(timers, class_name) else ["timers"]
        groups = [] if not isinstance(keyed, KeyedStateSnapshot) else keyed.groups.values()
        found += [repr(name) for group in groups for name, rows in group.items() if _refers_to(rows, class_name)]
        states = {} if by_subtask is None else by_subtask.states
        found += [repr(name) for name, rows in states.items() if _refers_to(rows, class_name)]
    except Exception:  # noqa: BLE001 - the error that is being explained counts
        return ""
    return f", {', '.join(dict.fromkeys(found))}" if found else ""


def _refers_to(value: object, class_name: str) -> bool:
    pickler = _FindsClass(class_name)
    pickler.dump(value)
    return pickler.has_found
