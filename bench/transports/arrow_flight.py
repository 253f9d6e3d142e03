"""A peer: Arrow Flight, ``do_get`` of a stream of record batches with one fixed-size binary value each.

Side:  any; Flight serves on threads of its own.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow
from pyarrow import flight

from bench.transports.common import BUFFER_BYTES, PayloadSource, Setting, Stop, Verifier

_VALUE = pyarrow.binary(BUFFER_BYTES)
_SCHEMA = pyarrow.schema([("buffer", _VALUE)])


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types here
    def __init__(self, source: PayloadSource, stop: Stop) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._source = source
        self._stop = stop
        self.is_done = threading.Event()

    def do_get(self, context: Any, ticket: Any) -> Any:
        return flight.GeneratorStream(_SCHEMA, self._batches())

    def _batches(self) -> Iterator[Any]:
        buffer = self._source.new_buffer()
        while not self._stop.is_set:
            self._source.label_next(buffer)
            value = pyarrow.Array.from_buffers(_VALUE, 1, [None, pyarrow.py_buffer(bytes(buffer))])
            yield pyarrow.RecordBatch.from_arrays([value], schema=_SCHEMA)
        self.is_done.set()


def produce(setting: Setting, source: PayloadSource, stop: Stop, listening: Callable[[int], None]) -> None:
    """Serve one stream."""
    with _Server(source, stop) as server:  # leaving the block waits for the stream
        listening(server.port)
        server.is_done.wait()


def consume(setting: Setting, port: int, verifier: Verifier) -> None:
    """Read the stream without copies."""
    with flight.connect(f"grpc://127.0.0.1:{port}") as client:
        for chunk in client.do_get(flight.Ticket(b"")):
            verifier.check(memoryview(chunk.data.column(0).buffers()[1]))
