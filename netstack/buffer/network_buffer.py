"""Pieces of network memory, who takes them back, and the books of debug mode; counted buffers over these segments, and
how they are compressed before they leave and decompressed before a task reads them.

Side:       shared.  The holder of a segment reads and writes it; leases and pools decide who holds it.  Any thread may
            retain, read and recycle a buffer; each of its holders recycles it exactly once.  ``BufferCompressor`` and
            ``BufferDecompressor`` keep no state, so any thread may use one object.
Hot path:   per buffer, not per record.  If a job asks for compression: 0.08 to 0.1 ms for 32 KiB of words or numbers,
            0.006 ms for random bytes; back again 0.05 ms, half of it for the check of the size (timeit).
Invariants: a segment is either at home or out, never out twice (FLINK-20654: one segment in two hands is silent
            corruption).  A lease is recycled when its count falls to zero, exactly once, outside its lock; the bytes of
            a buffer are readable only while its lease counts at least one.  A buffer is replaced only by a strictly
            smaller one; events never are.  A restored buffer fits one segment, whatever size its head claims.
Units:      sizes and offsets in bytes.
Lock order: ``SegmentLedger._lock`` is a leaf.
Source:     Flink ``MemorySegment``, ``BufferRecycler``, ``FreeingBufferRecycler``, ``NetworkBuffer``.  Views are made
            on demand, so that a buffer that was recycled keeps no export of the arena alive.  With NETSTACK_DEBUG=1 a
            ``SegmentLedger`` remembers who holds which segment, and a lease who took, kept and released it, and
            notices if all its holders forgot it; freed memory is poisoned, and errors tell the whole way.  Without it
            nothing of the ledger exists, and each hook is one test of a constant.  Flink ``BufferCompressor``,
            ``BufferDecompressor``, ``Lz4BlockCompressor``: two little-endian int32, the length of the block and of the
            original, then the raw LZ4 block.
Absent:     composite and file-backed buffers; LZO and ZSTD.  The compressor writes nothing back into the segment, which
            others may read (broadcast): the result is memory of its own, bounded by the queue that it goes to, and the
            segment goes home at once.
"""

import functools
import struct
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final, Protocol

from netstack.availability import run_all
from netstack.config import is_debug
from netstack.errors import BufferOwnershipError, RemoteProtocolError
from netstack.late import dataclass
from netstack.wire.messages import DataType

Frame = tuple[str, int, str]  # file, line, function
_MAX_STEPS: Final = 32  # of one lease; a buffer that many readers share keeps the last ones
_MAX_FRAMES: Final = 4
_OWN_FILES: Final = tuple(f"/netstack/buffer/{name}.py" for name in ("network_buffer", "buffer_builder"))


def callers() -> tuple[Frame, ...]:
    """Return file, line and function of the innermost callers outside the buffer classes; cheap enough for each step of
    a buffer.
    """
    found: list[Frame] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _MAX_FRAMES:
        code = frame.f_code
        if not code.co_filename.endswith(_OWN_FILES):
            found.append((code.co_filename, frame.f_lineno, code.co_qualname))
        frame = frame.f_back
    return tuple(found)


def describe(frames: Sequence[Frame]) -> str:
    """Write the callers as text, innermost first."""
    return " < ".join(f"{function} ({name.rpartition('/')[2]}:{line})" for name, line, function in frames)


class Trail:
    """The last steps of one lease.  Any thread: ``deque.append`` is atomic."""

    __slots__ = ("_steps",)

    def __init__(self, what: str) -> None:
        self._steps: deque[tuple[str, str, tuple[Frame, ...]]] = deque(maxlen=_MAX_STEPS)
        self.add(what)

    def add(self, what: str) -> None:
        """Note that ``what`` happened here and now, on this thread."""
        self._steps.append((what, threading.current_thread().name, callers()))

    def __str__(self) -> str:
        return "".join(f"\n  {what} on {thread} by {describe(frames)}" for what, thread, frames in self._steps)


class SegmentLedger:
    """The segments of one network pool that are out, and who took them.

    Threading: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        # Both have at most one entry for each segment of the arena.
        self._out: dict[int, tuple[str, tuple[Frame, ...]]] = {}
        self._last_return: dict[int, tuple[Frame, ...]] = {}
        # Appended by the garbage collector, at any time on any thread, so without the lock; append and list() are
        # atomic.
        self._lost: deque[str] = deque()

    def take(self, index: int, owner: str) -> None:
        """Note that ``owner`` gets segment ``index``.

        Raises:
            BufferOwnershipError: another owner has it.
        """
        frames = callers()
        with self._lock:
            before = self._out.get(index)
            if before is not None:
                raise BufferOwnershipError(
                    f"segment {index} is given to {owner}, but {before[0]} has it, by {describe(before[1])}"
                )
            self._out[index] = (owner, frames)

    def give_back(self, index: int) -> None:
        """Note that segment ``index`` comes home.

        Raises:
            BufferOwnershipError: it is home.
        """
        frames = callers()
        with self._lock:
            if self._out.pop(index, None) is None:
                last = self._last_return.get(index, ())
                raise BufferOwnershipError(
                    f"segment {index} is recycled twice: now by {describe(frames)}, before by {describe(last)}"
                )
            self._last_return[index] = frames

    def lose(self, index: int, trail: Trail) -> None:
        """Note that segment ``index`` can never come home: its last holder forgot it."""
        self._lost.append(f"segment {index}:{trail}")

    def check_lost(self) -> None:
        """Check that no segment was dropped instead of recycled.

        Raises:
            BufferOwnershipError: there are some; the text tells who held them.
        """
        if self._lost:
            raise BufferOwnershipError("dropped without being recycled: " + "; ".join(list(self._lost)))


class MemorySegment:
    """One fixed-size piece of memory; ``index`` is its number in the arena, -1 outside of one."""

    __slots__ = ("index", "ledger", "view")

    def __init__(self, view: memoryview, index: int = -1, ledger: SegmentLedger | None = None) -> None:
        self.view = view
        self.index = index
        self.ledger = ledger  # of its pool, in debug mode

    def __repr__(self) -> str:
        return f"<MemorySegment {self.index}>"


class BufferRecycler(ABC):
    """Takes back the segments of buffers that nobody uses any more; any thread.

    Several recyclers may bring segments to one ``home``; each brings the segments of its ``subpartition`` (-1: of
    none).
    """

    __slots__ = ()
    subpartition = -1

    @property
    def home(self) -> "BufferRecycler":
        """The recycler that takes the segments of several recyclers back at once."""
        return self

    @abstractmethod
    def recycle(self, segment: MemorySegment) -> None:
        """Take ``segment`` back."""

    def recycle_run(self, segments: Sequence[MemorySegment]) -> None:
        """Take back several segments; at once, with one wake-up for waiting threads, if the recycler can do that."""
        run_all([partial(self.recycle, segment) for segment in segments])

    def recycle_runs(self, runs: Sequence[tuple[int, Sequence[MemorySegment]]]) -> None:
        """Take back the segments of several subpartitions at once, of the recyclers that name this one as their
        ``home``.
        """
        run_all([partial(self.recycle_run, segments) for _, segments in runs])


class FreeingBufferRecycler(BufferRecycler):
    """Leaves the memory to the interpreter: the recycler of buffers that came from no pool."""

    __slots__ = ()

    def recycle(self, segment: MemorySegment) -> None:
        """Forget the segment."""


FREEING_RECYCLER: Final = FreeingBufferRecycler()


_POISON: Final = b"\xdd"  # fills freed segments when NETSTACK_DEBUG=1
_DEBUG: Final = is_debug()
_LAST: Final = True  # the token of the last holder
_OTHER: Final = False


class BufferLease:
    """The count of everybody who uses one segment: its builder, its consumer and the buffers built from it.

    Threading: any thread, without a lock: every holder has a token in a list, ``list.append`` and ``list.pop`` are
        atomic, and the token at the bottom, which only the last holder can draw, is marked.
    Life cycle: starts with one holder; when the last one releases, the segment goes to the recycler and the lease is
        dead.
    """

    __slots__ = ("_tokens", "_trail", "position", "recycler", "segment")

    def __init__(self, segment: MemorySegment, recycler: BufferRecycler) -> None:
        self.recycler = recycler  # takes the segment back in the end
        self.segment = segment
        self.position = 0  # Written by the segment's builder, see there; here, because both are needed once per buffer.
        # A list in place of a counter with a lock: two lock rounds less per buffer (ARCHITECTURE.md, decision 10).
        self._tokens = [_LAST]
        if _DEBUG:
            self._trail = Trail("taken")

    def __repr__(self) -> str:
        return f"<BufferLease of {self.segment!r}, {self.count} holders>"

    @property
    def count(self) -> int:
        """How many holders there are; a holder sees at least itself."""
        return len(self._tokens)

    def retain(self) -> None:
        """Count one holder more; only a holder may call this.

        Raises:
            BufferOwnershipError: the segment went back already.
        """
        # Not one step with the append, and need not be: the caller's own token keeps the list from becoming empty.
        if not self._tokens:
            raise self.misused("is retained after its release")
        self._tokens.append(_OTHER)
        if _DEBUG:
            self._trail.add("retained")

    def release(self) -> None:
        """Count one holder less; the last one sends the segment home.

        Raises:
            BufferOwnershipError: the segment went back already.
        """
        try:
            # One pop decides: of threads that release at once, one draws the token at the bottom.
            token = self._tokens.pop()
        except IndexError:
            raise self.misused("is released twice") from None
        if _DEBUG:
            self._note_release(token)
        if token is _LAST:
            self.recycler.recycle(self.segment)

    def _note_release(self, token: bool) -> None:  # noqa: FBT001 - a token, no switch
        self._trail.add("released")
        # A view that was kept too long shows wrong bytes at once.  Those of an event cannot be written.
        if token is _LAST and not self.segment.view.readonly:
            self.segment.view[:] = _POISON * len(self.segment.view)

    def abandon(self) -> None:
        """Forget the only holder without recycling: nobody took the buffer, and its maker keeps the segment."""
        assert len(self._tokens) == 1, f"{self!r} is in use"
        # A release would send the segment home, although its maker goes on with it.
        self._tokens.clear()

    if _DEBUG:

        def __del__(self) -> None:
            ledger = self.segment.ledger
            if self.count > 0 and ledger is not None:
                ledger.lose(self.segment.index, self._trail)

    def misused(self, what: str) -> BufferOwnershipError:
        """Make the error that ``what`` happened to the segment; in debug mode it names everybody who held it."""
        return BufferOwnershipError(f"{self.segment!r} {what}{self._trail if _DEBUG else ''}")


class BufferContent(Protocol):
    """An object that stands in a buffer for the bytes of whole records.

    One implementer: ``ChunkContent`` stands on a floor above.
    """

    size_bytes: int
    """Estimate of how many bytes ``to_bytes`` would return."""

    def to_bytes(self) -> bytes:
        """Serialize the records so that every reader of the subpartition understands them, however the stream before
        them was written.
        """


class NetworkBuffer:
    """``size`` bytes of a segment, and their kind: data or an event.

    Ownership: the receiver of a buffer recycles it once, or hands it on.  ``retain`` and ``slice`` add a reference that
    is recycled, too.
    """

    __slots__ = ("_lease", "_offset", "data_type", "is_buffer", "is_compressed", "size")

    def __init__(
        self,
        segment: MemorySegment,
        recycler: BufferRecycler,
        size: int,
        data_type: DataType,
        *,
        is_compressed: bool = False,
        offset: int = 0,
    ) -> None:
        assert 0 <= offset <= offset + size <= len(segment.view), (
            f"{size} bytes at {offset} of a segment of {len(segment.view)}"
        )
        self._lease = BufferLease(segment, recycler)
        self._offset = offset
        self.size = size
        self.data_type = data_type
        self.is_buffer = data_type.is_buffer
        self.is_compressed = is_compressed

    @classmethod
    def of_lease(
        cls,
        lease: BufferLease,
        offset: int,
        size: int,
        data_type: DataType,
        *,
        is_buffer: bool,
        is_compressed: bool = False,
    ) -> "NetworkBuffer":
        """Make a buffer that shares ``lease`` and takes over one reference that the caller has retained."""
        # Field by field: ``__init__`` would make a second lease.
        buffer = cls.__new__(cls)
        buffer._lease = lease
        buffer._offset = offset
        buffer.size = size
        buffer.data_type = data_type
        buffer.is_buffer = is_buffer
        buffer.is_compressed = is_compressed
        return buffer

    @classmethod
    def unpooled(cls, data: bytes, data_type: DataType, *, is_compressed: bool = False) -> "NetworkBuffer":
        """Make a buffer over ``data`` itself; recycling it frees nothing."""
        return cls(MemorySegment(memoryview(data)), FREEING_RECYCLER, len(data), data_type, is_compressed=is_compressed)

    def __repr__(self) -> str:
        return f"<NetworkBuffer {self.data_type.name} {self.size} bytes of {self._lease!r}>"

    @property
    def content(self) -> BufferContent | None:
        """The content that this buffer holds in place of bytes; None: it holds bytes."""
        return None

    @property
    def view(self) -> memoryview:
        """The bytes; do not keep the view beyond ``recycle``.

        Raises:
            BufferOwnershipError: the buffer was recycled by its last holder.
        """
        lease = self._lease
        # Finds a holder that reads behind its own recycle; no lock, because holders cannot lose the segment meanwhile.
        if not lease._tokens:
            raise lease.misused("is used after its release")
        view = lease.segment.view
        offset, size = self._offset, self.size
        # Fast path: a whole segment needs no slice.
        return view if size == len(view) else view[offset : offset + size]

    def retain(self) -> "NetworkBuffer":
        """Add a reference and return this buffer, which now needs one ``recycle`` more.

        Raises:
            BufferOwnershipError: it was recycled by its last holder.
        """
        self._lease.retain()
        return self

    def recycle(self) -> None:
        """Give one reference back; the last one returns the segment.

        Raises:
            BufferOwnershipError: it was recycled by its last holder already.
        """
        self._lease.release()

    def slice(self, offset: int, size: int) -> "NetworkBuffer":
        """Make a buffer of ``size`` bytes from ``offset`` on, with a reference of its own.

        Raises:
            ValueError: the range is not inside this buffer.
            BufferOwnershipError: it was recycled by its last holder.
        """
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"{size} bytes at {offset} are not inside a buffer of {self.size}")
        lease = self._lease
        lease.retain()
        part = NetworkBuffer.of_lease(lease, self._offset + offset, size, self.data_type, is_buffer=self.is_buffer)
        part.is_compressed = self.is_compressed
        return part

    @property
    def lease(self) -> BufferLease:
        """The lease that counts the users of this buffer's segment."""
        return self._lease

    @property
    def offset(self) -> int:
        """The position in the segment at which this buffer begins."""
        return self._offset


class BufferListener(Protocol):
    """Waits for a buffer of a pool that has none.

    Called on the thread that recycles or destroys, outside every lock.

    One implementer: ``BufferManager`` imports this module, which therefore cannot import it.
    """

    def notify_buffer_available(self, buffer: NetworkBuffer) -> bool:
        """Hear that one buffer is free: return True to take it over, False to leave it to the next listener.

        The listener is out of the line either way.
        """

    def notify_buffer_destroyed(self) -> None:
        """Hear that the pool was destroyed; no buffer will come."""


def recycle_all(buffers: Iterable[NetworkBuffer]) -> None:
    """Give one reference of each buffer back; segments of one pool go home together, with one wake-up for waiting
    threads.

    Raises:
        BufferOwnershipError: one was recycled by its last holder already; the others were recycled nevertheless.
    """
    runs: dict[BufferRecycler, list[MemorySegment]] = {}
    calls: list[Callable[[], object]] = []
    last: BufferRecycler | None = None
    segments: list[MemorySegment] = []
    for buffer in buffers:
        lease = buffer._lease
        recycler = lease.recycler
        tokens = lease._tokens
        if not tokens:
            calls.append(lease.release)  # raises the error that names the fault
            continue
        # ``lease.release``, written out, but for the recycler, which gets all segments at once.
        token = tokens.pop()
        if _DEBUG:
            lease._note_release(token)
        # Others still read it: the last of them sends it home.
        if token is not _LAST:
            continue
        if recycler is not last:
            last = recycler
            segments = runs.setdefault(recycler, [])
        segments.append(lease.segment)
    # Fast path: the buffers of one channel or subpartition.
    if len(runs) == 1 and not calls and last is not None:
        last.recycle_run(segments)
        return
    # One lock round for each pool, however many of its subpartitions the segments count for.
    homes: dict[BufferRecycler, list[tuple[int, Sequence[MemorySegment]]]] = {}
    for recycler, run in runs.items():
        homes.setdefault(recycler.home, []).append((recycler.subpartition, run))
    run_all([*(partial(home.recycle_runs, returned) for home, returned in homes.items()), *calls])


def recycle_segments(segments: Sequence[MemorySegment], recycler: BufferRecycler) -> None:
    """Give back segments without a lease, with one wake-up for waiting threads.  The caller was their only holder."""
    # They had no lease that would do it.
    if _DEBUG:
        for segment in segments:
            segment.view[:] = _POISON * len(segment.view)
    recycler.recycle_run(segments)


_LZ4_HEADER: Final = struct.Struct("<ii")


@functools.cache
def raw_lz4() -> Any:
    """Return Arrow's codec of raw LZ4 blocks, which keeps no state between calls.

    It is loaded at its first use: the import of pyarrow takes longer than that of all of netstack, and few networks are
    compressed.
    """
    import pyarrow as pa

    return pa.Codec("lz4_raw")


class BufferCompressor:
    """Compresses data buffers."""

    __slots__ = ()

    def compress(self, buffer: NetworkBuffer) -> NetworkBuffer:
        """Return ``buffer`` itself, or a smaller one in its place; takes over the caller's reference, and the caller
        recycles the result.
        """
        size = buffer.size
        if size <= _LZ4_HEADER.size or not buffer.is_buffer or buffer.is_compressed:
            return buffer
        block: bytes = raw_lz4().compress(buffer.view, asbytes=True)
        # The receiver has room for one segment: a larger block might not fit.
        if _LZ4_HEADER.size + len(block) >= size:
            return buffer
        smaller = NetworkBuffer.unpooled(
            _LZ4_HEADER.pack(len(block), size) + block, buffer.data_type, is_compressed=True
        )
        # Only now: the block has memory of its own.
        buffer.recycle()
        return smaller


@dataclass(frozen=True, slots=True)
class BufferDecompressor:
    """Restores buffers that a ``BufferCompressor`` or Flink compressed.

    Args:
        max_bytes: the size of a segment; nothing bigger is restored.
    """

    max_bytes: int

    def decompress(self, buffer: NetworkBuffer) -> NetworkBuffer:
        """Return the original of a compressed ``buffer``, any other buffer as it is; one reference in, one out.

        Raises:
            RemoteProtocolError: the bytes are no such block, or too big; the buffer is recycled nevertheless.
        """
        if not buffer.is_compressed:
            return buffer
        try:
            return NetworkBuffer.unpooled(self._restore(buffer.view), buffer.data_type)
        finally:
            buffer.recycle()

    def _restore(self, data: memoryview) -> bytes:
        if len(data) < _LZ4_HEADER.size:
            raise RemoteProtocolError(f"a compressed buffer of {len(data)} bytes has no header")
        block_size, size = _LZ4_HEADER.unpack_from(data)
        # Before memory is taken: the peer claims the size.
        if block_size != len(data) - _LZ4_HEADER.size or not 0 < size <= self.max_bytes:
            raise RemoteProtocolError(
                f"a compressed buffer of {len(data)} bytes claims {block_size} compressed, {size} original ones (at "
                f"most {self.max_bytes})"
            )
        block = data[_LZ4_HEADER.size :]
        try:
            restored: bytes = raw_lz4().decompress(block, decompressed_size=size, asbytes=True)
        except OSError as error:
            raise RemoteProtocolError(f"a compressed buffer of {len(data)} bytes is broken: {error}") from error
        if _fits(block, size - 1):
            raise RemoteProtocolError(f"a compressed buffer claims an original of {size} bytes, but holds fewer")
        return restored


def _fits(block: memoryview, size: int) -> bool:
    """Whether the original of ``block`` has at most ``size`` bytes.

    Arrow says of a block only whether it fits, not how long its original is, and leaves the rest of the memory as it
    found it: without this question a peer that claims too much would make records of whatever this process had there
    before.
    """
    try:
        raw_lz4().decompress(block, decompressed_size=size)
    except OSError:
        return False
    return True
