"""An enumerator beside the readers that it serves, in one thread and in place of a JobManager."""

from collections.abc import Callable
from dataclasses import replace

from flowlet.operators.source_operator import SourceOperator
from flowlet.operators.source_reader import Source, SourceReaderBase, split_set_of
from flowlet.splits.enumerator import SplitEnumerator
from flowlet.splits.enumerators import enumerator_for


def requests_to(
    enumerator: SplitEnumerator, receiver: SourceReaderBase | SourceOperator, reader: int = 0
) -> Callable[[], None]:
    """Return the function with which the reader asks; its request is answered before the call returns."""

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


def enumerator_of(source: Source) -> SplitEnumerator:
    """Return the enumerator that the JobManager makes of a source with splits."""
    split_set = split_set_of(source)
    assert split_set is not None
    return enumerator_for(split_set)


def serve_splits(operator: SourceOperator, source: Source) -> None:
    """Give a source operator that was set up, and is not open yet, all splits of a source.

    ``source``: that of the operator before it was pickled, since splits do not travel with it.
    """
    if split_set_of(source) is not None:
        enumerator = enumerator_of(source)
        enumerator.discover(num_readers=1)
        operator.ctx = replace(operator.ctx, request_splits=requests_to(enumerator, operator))
