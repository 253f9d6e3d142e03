"""The files that a state's pickle is written to and read from: memory, behind methods in Python.

Side:   pure.
Rules:  the pickler and the unpickler are C and keep the interpreter's lock.  A call of a method in Python, once per
        frame of 64 KiB, lets other threads run.  While a dict of a million tuples was pickled by ``pickle.dumps``, the
        other threads stood still for 1.4 s; so written, for at most 0.27 s, on a busy machine, and the whole took 1.5
        s.
"""


class PickleWriter:
    """Collects a pickle."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        """The pickle, in order."""

    def write(self, piece: bytes | bytearray | memoryview) -> int:
        """Keep a frame, or one large value."""
        self.pieces.append(bytes(piece))  # of bytes, this is the same object
        return len(piece)


class PickleReader:
    """Gives a pickle.  What is asked for beyond its end is cut off, as in a file."""

    def __init__(self, pickled: memoryview) -> None:
        self._rest = pickled

    def read(self, size: int) -> bytes:
        """The next bytes."""
        taken, self._rest = self._rest[:size], self._rest[size:]
        return bytes(taken)

    def readinto(self, target: memoryview) -> int:
        """The next bytes, written into ``target``."""
        size = min(len(target), len(self._rest))
        target[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def readline(self) -> bytes:
        """The next line; the unpickler wants this method, and calls it only for pickles of old protocols."""
        end = bytes(self._rest).find(b"\n") + 1
        return self.read(end or len(self._rest))
