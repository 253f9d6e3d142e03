"""Storages of checkpoints as objects set what options set."""

from typing import Any

import pytest

from flowlet.datastream import (
    CheckpointConfig,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
    StreamExecutionEnvironment,
)
from flowlet.errors import ConfigError


def test_a_directory_that_was_set_is_where_jobs_keep_checkpoints() -> None:
    environment = StreamExecutionEnvironment().enable_checkpointing(1000)
    config = environment.get_checkpoint_config()
    assert config.get_checkpoint_storage() is None

    config.set_checkpoint_storage(FileSystemCheckpointStorage("/shared/checkpoints"))
    assert environment._job_settings(is_batch=False).checkpoints.directory == "/shared/checkpoints"  # type: ignore[union-attr]
    config.set_checkpoint_storage_dir("s3://bucket/checkpoints")

    found = config.get_checkpoint_storage()
    assert isinstance(found, FileSystemCheckpointStorage)
    assert found.get_checkpoint_path() == "s3://bucket/checkpoints"


def test_what_a_storage_was_made_with_can_be_asked_for() -> None:
    files = FileSystemCheckpointStorage("/a")
    memory = JobManagerCheckpointStorage("/b", 100)

    assert files.get_savepoint_path() is None
    assert (files.get_min_file_size_threshold(), files.get_write_buffer_size()) == (20_480, 20_480)
    assert (memory.get_checkpoint_path(), memory.get_max_state_size(), memory.get_savepoint_path()) == ("/b", 100, None)
    assert JobManagerCheckpointStorage().get_max_state_size() == JobManagerCheckpointStorage.DEFAULT_MAX_STATE_SIZE
    assert "/a" in str(files)
    assert "100" in str(memory)


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        (JobManagerCheckpointStorage(), "checkpoints are not kept in the memory of the JobManager"),
        ("/a", "a CheckpointStorage is needed"),
    ],
)
def test_what_cannot_be_had_is_refused_where_it_is_used(storage: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CheckpointConfig().set_checkpoint_storage(storage)


def test_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="needs the path or URL of a directory"):
        FileSystemCheckpointStorage()
    with pytest.raises(ConfigError, match="the limit is 1048576"):
        FileSystemCheckpointStorage("/a", 2 << 20)
    with pytest.raises(ConfigError, match="max_state_size must be a number of bytes"):
        JobManagerCheckpointStorage(None, -1)
