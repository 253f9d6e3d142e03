"""A peer: ZeroMQ, PUSH to PULL over TCP, one message per buffer, blocking calls.

Side:  any; libzmq has one more thread on each side.
"""

from collections.abc import Callable

import zmq

from bench.transports.common import PayloadSource, Setting, Stop, Verifier


def produce(setting: Setting, source: PayloadSource, stop: Stop, listening: Callable[[int], None]) -> None:
    """Send; an empty message is the end.  Copies of 32 KiB are as quick as ``copy=False`` with its tracking."""
    buffer = source.new_buffer()
    with zmq.Context() as context, context.socket(zmq.PUSH) as sender:
        sender.setsockopt(zmq.SNDHWM, max(8, setting.num_credits * setting.num_channels))
        sender.setsockopt(zmq.LINGER, 10_000)
        listening(sender.bind_to_random_port("tcp://127.0.0.1"))
        while not stop.is_set:
            source.label_next(buffer)
            sender.send(buffer)
        sender.send(b"")


def consume(setting: Setting, port: int, verifier: Verifier) -> None:
    """Receive without copies into Python."""
    with zmq.Context() as context, context.socket(zmq.PULL) as receiver:
        receiver.setsockopt(zmq.RCVHWM, max(8, setting.num_credits * setting.num_channels))
        receiver.connect(f"tcp://127.0.0.1:{port}")
        while len(view := receiver.recv(copy=False).buffer):
            verifier.check(view)
