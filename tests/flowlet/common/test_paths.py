"""The meaning of a path or URL that a user writes, which is one for sources, sinks, checkpoints, savepoints and files
that a program ships.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from flowlet.common import Configuration
from flowlet.common.options.known_options import checkpoint_settings, recovery_path
from flowlet.common.options.python_options import CachedPath, DependencySettings
from flowlet.common.paths import absolute_url, local_path
from flowlet.common.serialization import Encoder
from flowlet.datastream.connectors import FileSource, StreamFormat
from flowlet.datastream.connectors.file_system import FileSink
from flowlet.errors import FlowletError
from flowlet.shipping.bundle_maker import pack


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program runs in ``work``; its user's home is ``home``."""
    for name in ("work", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def of_a_source(path: str) -> str:
    return FileSource.for_record_stream_format(StreamFormat.text_line_format(), path).build().paths[0]


def of_a_sink(path: str) -> str:
    return FileSink.for_row_format(path, Encoder.simple_string_encoder()).build().base_path


def options(**values: str) -> Configuration:
    return Configuration.from_dict(
        {f"execution.{name.replace('__', '.').replace('_', '-')}": value for name, value in values.items()}
    )


def of_checkpoints(path: str) -> str:
    settings = checkpoint_settings(options(checkpointing__dir=path, checkpointing__interval="1 s"), None)
    assert settings is not None
    return settings.directory


def of_savepoints(path: str) -> str:
    settings = checkpoint_settings(options(checkpointing__savepoint_dir=path), None)
    assert settings is not None
    return settings.savepoint_directory


def of_a_restored_savepoint(path: str) -> str:
    return recovery_path(options(state_recovery__path=path))


PLACES = [of_a_source, of_a_sink, of_checkpoints, of_savepoints, of_a_restored_savepoint, absolute_url, local_path]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/x/y", "/x/y"),
        ("/x/y/", "/x/y"),
        ("//x///y", "/x/y"),
        ("/x/a/../y", "/x/y"),
        ("file:/x", "/x"),
        ("file:///x", "/x"),
        ("FILE:///x/", "/x"),
        ("file://localhost/x", "/x"),
        ("file:///x%20y", "/x%20y"),
        ("/x:y", "/x:y"),
        ("x", "{work}/x"),
        ("./x:y", "{work}/x:y"),
        ("../x", "{work}/../x"),
        ("file:x", "{work}/x"),
        ("~/x", "{home}/x"),
        ("file:~/x", "{home}/x"),
    ],
)
def test_a_path_means_the_same_everywhere(place: Callable[[str], str], text: str, path: str, tmp_path: Path) -> None:
    """A path is absolute before it leaves the program, because other processes have other working directories."""
    assert place(text) == path.format(work=tmp_path / "work", home=tmp_path / "home").replace("work/../", "")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file://x/y", "names the host 'x', not a folder; if you forgot a slash, write 'file:///x/y'"),
        ("file:", "names no file"),
        ("/x\0y", "names no file"),
        ("~no-such-user/x", "names the home of a user that this machine does not know"),
    ],
)
def test_what_names_no_file_is_refused_with_what_to_write(place: Callable[[str], str], text: str, message: str) -> None:
    with pytest.raises((FlowletError, ValueError), match=message):
        place(text)


@pytest.mark.parametrize("place", [of_a_source, of_a_sink, local_path])
@pytest.mark.parametrize("text", ["s3://bucket/x", "hdfs:///x", "x:y"])
def test_files_of_another_scheme_are_refused_with_what_to_do(place: Callable[[str], str], text: str) -> None:
    advice = "" if "//" in text else f"; if the colon is a part of the name, write './{text}'"
    reason = f"{text}' has the scheme .*: mount that store, or copy the files{advice}$"
    with pytest.raises((FlowletError, ValueError), match=reason):
        place(text)


def test_checkpoints_may_be_at_a_url() -> None:
    assert [of_checkpoints("s3://bucket/x"), of_savepoints("s3://bucket/x"), absolute_url("gs://b/x%20y")] == [
        "s3://bucket/x",
        "s3://bucket/x",
        "gs://b/x%20y",
    ]


@pytest.mark.parametrize(
    "text", ["model", "file:model", "file://localhost{work}/model", "~/model", "{work}/../work//model"]
)
def test_files_that_a_program_ships_are_found_by_the_same_rule(text: str, tmp_path: Path) -> None:
    for folder in ("work", "home"):
        (tmp_path / folder / "model").write_text("weights")
    settings = DependencySettings(cached=(CachedPath("m", text.format(work=tmp_path / "work")),))

    with pack(settings) as packed:
        assert [each.file.num_bytes for each in packed.bundle.files.cached] == [7]


@pytest.mark.parametrize("text", ["hdfs://host/model", "file://host/model"])
def test_files_that_cannot_be_shipped_are_named_with_what_to_do(text: str) -> None:
    settings = DependencySettings(cached=(CachedPath("m", text),))

    reason = r"register_cached_file\(\): '.*host/model' (has the scheme 'hdfs'|names the host 'host')"
    with pytest.raises(FlowletError, match=reason):
        pack(settings).__enter__()
