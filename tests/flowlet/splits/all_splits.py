"""All splits of files, as one reader gets them."""

from collections.abc import Sequence

from flowlet.connectors.files.split import FileSplitEnumerator
from flowlet.splits.split_kinds import FileSet, FileSplit


def all_splits(
    paths: Sequence[str], charset: str = "UTF-8", split_bytes: int | None = None, num_readers: int = 1
) -> list[FileSplit]:
    """Return the splits in the order in which they are handed out."""
    enumerator = FileSplitEnumerator(FileSet(tuple(paths), charset, split_bytes))
    enumerator.discover(num_readers)
    found: list[FileSplit] = []
    while splits := enumerator.next_splits(0):
        found += splits
    return found
