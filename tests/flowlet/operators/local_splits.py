"""An enumerator beside the readers that it serves, in one thread and in place of a JobManager."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flowlet.operators.source_operator import SourceOperator, enumerator_of
from flowlet.splits.enumerator import SplitEnumerator, SplitReceiver


def requests_to(
    enumerator: SplitEnumerator, receiver: SplitReceiver[Any] | SourceOperator, reader: int = 0
) -> Callable[[], None]:
    """What the reader asks with; it is answered before the call returns."""

    def request() -> None:
        splits = enumerator.next_splits(reader)
        if not splits and not enumerator.is_discovered:
            enumerator.restore(enumerator.snapshot(), num_readers=1)  # the next source
            splits = enumerator.next_splits(reader)
        if splits:
            receiver.add_splits(splits, enumerator.waiting_bytes)
        else:
            receiver.no_more_splits()

    return request


def serve_splits(operator: SourceOperator) -> None:
    """Give a source operator that was set up, and is not open yet, all splits of its source."""
    enumerator = enumerator_of(operator.source)
    if enumerator is not None:
        enumerator.discover(num_readers=1)
        operator.ctx = replace(operator.ctx, request_splits=requests_to(enumerator, operator))
