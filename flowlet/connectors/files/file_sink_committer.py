"""``FileSinkCommitter``: gives part files their names once their checkpoint is complete.

Side:       task.
Invariants: what is committed is durable: folders are fsynced before ``commit`` returns.
Source:     Flink ``FileCommitter``.
"""

import os
from collections.abc import Sequence

from flowlet.connectors.files.file_sink_writer import PendingFile, StaleFile
from flowlet.connectors.files.part_files import publish, remove, sync_folders
from flowlet.datastream.connectors.committer import CommitRequest, Committer


class FileSinkCommitter(Committer[PendingFile | StaleFile]):
    """Publishes pending files, and removes stale ones; to do it again changes nothing."""

    def commit(self, requests: Sequence[CommitRequest[PendingFile | StaleFile]]) -> None:
        """Publish and remove.  Raises FlowletError: a file is missing, or the operating system refuses."""
        folders = set()
        for request in requests:
            committable = request.get_committable()
            match committable:
                case PendingFile(draft=draft, path=path):
                    publish(draft, path)
                    folders.add(os.path.dirname(path))
                case StaleFile(path=path):
                    remove(path)
        sync_folders(folders)
