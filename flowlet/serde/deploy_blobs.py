"""Serializes operator chains and partitioners for their way from the client to a TaskManager.

Side:       shared.  Each task opens its blobs on its own thread.
Invariants: only one blob is opened at a time: opening imports modules, and two threads that enter a circle of imports
            at different places deadlock (Python detects that and fails one of them).  Only a client writes blobs.  Only
            a TaskManager, or a producer of a remote gate, opens them, and only after the JobManager that sent them has
            proved its identity.  No other part of the control plane is a pickle.
Rules:      functions of ``__main__``, lambdas and nested functions are pickled by value, those of modules by name.  In
            the process of the program that made them, classes have the methods that the tasks brought only while tasks
            run.
Format:     a blob is one pickle, or several that one unpickler reads: first the containers that it shares with other
            blobs, at last the object.
"""

import contextlib
import io
import sys
import threading
import warnings
from collections import Counter, deque
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from flowlet.errors import FlowletError, JobSubmissionError
from flowlet.messages.program_bundle import ProgramBundle, divide, join
from flowlet.serde.pickles import program_pickle
from flowlet.serde.pickles.class_pickle import Replaced, program_classes_change, put_back
from flowlet.serde.pickles.program_pickle import FoundPart, describe_unpicklable, find_largest, find_objects
from flowlet.serde.pickles.record_pickle import PresentUnpickler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flowlet.chain.operator_chain import ChainedOperator
    from flowlet.graph.job_graph import Chained
    from flowlet.graph.partitioner import Partitioner


_ADVICE: Final = "make what cannot be pickled in open() of a function class, which runs on the TaskManager"
_NO_CODE: Final = ProgramBundle()
# A smaller piece is not worth its name; Python's pickler writes contents from 64 KiB on separately.
MIN_PIECE_BYTES: Final = 256 * 1024
_CONTAINERS: Final = (dict, list, tuple, set, frozenset, deque)
_MIN_CONTAINER_ITEMS: Final = 64  # a large container with fewer items has large contents, which are pieces
OPENING: Final = threading.RLock()
"""Held while modules of users are imported; no other lock of ours is taken under it."""


class _ProgramClasses:
    """Classes of a program whose tasks run in its own process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # A leaf.
        self._num_tasks = 0  # Guarded by _lock.
        self._replaced: Replaced = {}  # Guarded by OPENING.

    @contextlib.contextmanager
    def lent(self) -> "Iterator[None]":
        """Lend the classes to a task, which runs in the block and may open blobs.

        When the last task has ended, the program's classes are put back.
        """
        with self._lock:
            self._num_tasks += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_tasks -= 1
            # Never in a TaskManager that is a process of its own.  No lock: the count is read again under OPENING.
            if self._replaced and not self._num_tasks:
                with OPENING:
                    if not self._num_tasks:  # else the next task has opened its blobs meanwhile, and puts them back
                        put_back(self._replaced)

    def change(self) -> "contextlib.AbstractContextManager[None]":
        """Let a blob change the classes; it is opened in the block, which holds ``OPENING``."""
        return program_classes_change(self._replaced) if self._num_tasks else contextlib.nullcontext()


PROGRAM_CLASSES: Final = _ProgramClasses()
"""The program classes of this process: a class is one object for all its threads."""


class DeploymentError(FlowletError):
    """A blob could not be opened; raised ``from`` the cause."""


class SharedGeneratorWarning(UserWarning):
    """A generator of random numbers is copied to several subtasks, which then draw equal numbers."""


def _is_piece(part: bytes) -> bool:
    """Whether a part of a pickle is the large content of a text, bytes, an array or a buffer, and not the data between
    such contents.
    """
    return len(part) >= MIN_PIECE_BYTES


def dump_chain(
    chain: "Sequence[Chained]", vertex: str, parallelism: int = 1, pieces: dict[bytes, bytes] | None = None
) -> bytes:
    """Serialize the operators of a vertex; warn of generators of random numbers that would be copied to its subtasks.

    ``pieces`` takes the large pieces of the blob by name, so that they travel once for all vertices of the job; None:
    they stay in the blob.

    Raises:
        JobSubmissionError: an operator cannot be pickled; the message names it, the variable and the reason.
    """
    file = program_pickle.PickleWriter()
    operators = list(chain)
    pickler = program_pickle.ProgramPickler(file)
    try:
        pickler.dump(operators)
    except Exception as error:
        operator, reason = _first_unpicklable(chain, error)
        raise JobSubmissionError(
            f"vertex {vertex!r}: {operator} cannot be sent to a TaskManager: {reason}; {_ADVICE}"
        ) from error
    if pickler.generators and parallelism > 1:
        _warn_of_copies(find_objects(operators, pickler.generators), vertex, parallelism)
    return _divided(file, pieces)


def share_containers(roots: "Sequence[Any]", blobs: "Sequence[bytes]", pieces: dict[bytes, bytes]) -> list[bytes]:
    """Write large blobs again, so that containers of many small objects that several of them have travel once, too.

    ``roots``: the object of each of ``blobs``; ``pieces`` takes the containers.
    """
    numbers = [number for number, blob in enumerate(blobs) if len(blob) >= MIN_PIECE_BYTES]
    if len(numbers) < 2:
        return list(blobs)
    found: dict[int, dict[int, Any]] = {}
    for number in numbers:
        finder = _ContainerFinder()
        finder.dump(roots[number])
        found[number] = finder.found
    times = Counter(key for containers in found.values() for key in containers)
    common = {
        key for containers in found.values() for key, each in containers.items() if times[key] > 1 and _is_large(each)
    }
    shared = list(blobs)
    for number in numbers:
        containers = [each for key, each in sorted(found[number].items()) if key in common]
        if containers:
            shared[number] = _dump_behind(containers, roots[number], pieces)
    return shared


class _ContainerFinder(program_pickle.ProgramPickler):
    """Finds the outermost containers of many objects, and does not look into them."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.found: dict[int, Any] = {}  # By identity; kept, so that no other object gets it.

    def persistent_id(self, obj: Any) -> int | None:
        """The identity of a container; None for any other object."""
        if isinstance(obj, _CONTAINERS) and len(obj) >= _MIN_CONTAINER_ITEMS:
            self.found[id(obj)] = obj
            return id(obj)
        return None


def _is_large(container: Any) -> bool:
    file = program_pickle.PickleWriter()
    program_pickle.ProgramPickler(file).dump(container)
    return sum(len(part) for part in file.pieces if not _is_piece(part)) >= MIN_PIECE_BYTES


def _dump_behind(containers: list[Any], root: Any, pieces: dict[bytes, bytes]) -> bytes:
    """The blob of an object, with the pickles of some of its containers in front, to which its own pickle refers."""
    file = program_pickle.PickleWriter()
    pickler = program_pickle.ProgramPickler(file)
    parts: list[tuple[bytes, bool]] = []
    for container in containers:
        pickler.dump(container)
        for is_piece, run in groupby(file.pieces, key=_is_piece):
            parts += [(part, True) for part in (run if is_piece else [b"".join(run)])]
        file.pieces.clear()
    pickler.dump(root)
    return divide(parts + [(part, _is_piece(part)) for part in file.pieces], pieces)


def _divided(file: program_pickle.PickleWriter, pieces: dict[bytes, bytes] | None) -> bytes:
    if pieces is None:
        return b"".join(file.pieces)
    return divide([(part, _is_piece(part)) for part in file.pieces], pieces)


def _warn_of_copies(generators: "Sequence[FoundPart]", vertex: str, parallelism: int) -> None:
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("flowlet."):
        level, frame = level + 1, frame.f_back
    for generator in generators:
        if generator.where:
            warnings.warn(
                f"vertex {vertex!r}: {generator} is copied to {parallelism} subtasks, which all draw the same numbers "
                "from it; make it in "
                "open() of a function class, with runtime_context.get_index_of_this_subtask() in its seed",
                SharedGeneratorWarning,
                stacklevel=level,
            )


def dump_partitioner(partitioner: "Partitioner", edge: str, pieces: dict[bytes, bytes] | None = None) -> bytes:
    """Serialize the partitioner of an edge, with the user's key selector in it; ``pieces``: as ``dump_chain``.

    Raises:
        JobSubmissionError: it cannot be pickled; the message names the edge and the reason.
    """
    file = program_pickle.PickleWriter()
    try:
        program_pickle.ProgramPickler(file).dump(partitioner)
    except Exception as error:
        reason = describe_unpicklable(partitioner, error)
        raise JobSubmissionError(f"edge {edge!r}: its partitioner cannot be sent to a TaskManager: {reason}") from error
    return _divided(file, pieces)


def load_chain(blob: bytes, task_name: str, code: ProgramBundle = _NO_CODE) -> "list[ChainedOperator]":
    """Open a chain of operators; ``code`` has the pieces that it lacks.

    It imports the user's modules and may take long: never call it on the event loop.

    Raises:
        DeploymentError: a module is missing here, or the user's code raised while it was imported or unpickled.
    """
    chain = load_object(blob, f"the operators of task {task_name!r}", code)
    assert isinstance(chain, list), "written by dump_chain"
    return chain


def load_partitioner(blob: bytes, task_name: str, code: ProgramBundle = _NO_CODE) -> "Partitioner":
    """Open the partitioner of an output; ``code`` and errors are those of ``load_chain``."""
    partitioner: Partitioner = load_object(blob, f"the partitioner of an output of task {task_name!r}", code)
    return partitioner


def load_object(blob: bytes, what: str, code: ProgramBundle = _NO_CODE) -> Any:
    """Open one object of the user's program; ``what`` is for people.  Raises as ``load_chain``."""
    try:
        with OPENING, PROGRAM_CLASSES.change():
            return _loads(join(blob, code.pieces))
    except ModuleNotFoundError as error:
        hint = (
            "install it where the TaskManager runs, or import it at the top of a program that lies in the same folder"
        )
        raise DeploymentError(
            f"{what} need the module {error.name!r}, which this TaskManager does not find: {hint}"
        ) from error
    except Exception as error:
        versions = code.other_versions()
        raise DeploymentError(
            f"{what} could not be loaded: {type(error).__name__}: {error}{versions and f' ({versions})'}"
        ) from error


def _loads(blob: bytes) -> Any:
    file = io.BytesIO(blob)
    unpickler = PresentUnpickler(file)  # a job store may have the blobs of a former version
    loaded = unpickler.load()
    while file.tell() < len(blob):
        loaded = unpickler.load()
    return loaded


def describe_largest(chain: "Sequence[Chained]") -> str:
    """The part that makes the pickle of a vertex large, for an error message."""
    found = find_largest(list(chain))
    return f"{found.num_bytes} of them are {found}" if found.where else "in many small parts"


def _first_unpicklable(chain: "Sequence[Chained]", error: Exception) -> tuple[str, str]:
    """The first operator that cannot be pickled on its own, and why, for an error message."""
    for chained in chain:
        try:
            program_pickle.dumps(chained)
        except Exception as problem:  # noqa: BLE001 - any exception marks the operator
            return f"operator {chained.operator.name!r}", describe_unpicklable(chained, problem)
    return "its chain of operators", describe_unpicklable(list(chain), error)
