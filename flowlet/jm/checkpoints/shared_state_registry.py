"""``SharedStateRegistry``: which files of a job's checkpoints are shared, and when one is needed no more.

Side:       pure.
Invariants: a file that a kept checkpoint names is never given out as unused, and neither is one that a pending
            checkpoint may name.
Rules:      a file goes when the oldest kept checkpoint is newer than the last one that named it.  Nothing goes when a
            checkpoint is aborted: a task may be writing the same file for the next one.  That is enough, because a
            database never gets a file back: one that is missing in a complete checkpoint will be named by no later
            checkpoint of that task, and a restored task begins with the files of a complete checkpoint.
Source:     Flink ``SharedStateRegistryImpl`` (``lastUsedCheckpointID``, ``unregisterUnusedState``).
"""

from collections.abc import Iterable


class SharedStateRegistry:
    """The shared files of one job, by their paths.  Threading: one thread."""

    def __init__(self) -> None:
        self._last_named: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<SharedStateRegistry of {len(self._last_named)} files>"

    @property
    def paths(self) -> frozenset[str]:
        """All files that are known and not given out as unused."""
        return frozenset(self._last_named)

    def name(self, checkpoint_id: int, paths: Iterable[str]) -> None:
        """A checkpoint, pending or complete, names files."""
        for path in paths:
            self._last_named[path] = max(checkpoint_id, self._last_named.get(path, checkpoint_id))

    def take_unused(self, oldest_kept: int) -> list[str]:
        """Forget, and return, the files that no checkpoint from ``oldest_kept`` on names."""
        unused = [path for path, checkpoint_id in self._last_named.items() if checkpoint_id < oldest_kept]
        for path in unused:
            del self._last_named[path]
        return unused

    def clear(self) -> None:
        """Forget all files."""
        self._last_named.clear()
