"""Promises of the file in which a large element waits.  Source: Flink `SpanningWrapper`."""

import gc
import os
from pathlib import Path

import pytest

from flowlet.errors import SerdeError
from flowlet.serde.element_serializer import SpillFile


def open_files(directory: Path) -> int:
    """How many descriptors and mappings of this process lead into the directory."""
    links = [
        os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{name}")
    ]
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum(str(directory) in each for each in [*links, *maps])


def test_what_was_appended_is_seen_as_one(tmp_path: Path) -> None:
    spilled = SpillFile(str(tmp_path))

    spilled.append(b"abc")
    spilled.append(memoryview(b"defgh"))

    assert len(spilled) == 8
    assert [spilled.read(start, 3) for start in range(0, 9, 3)] == [b"abc", b"def", b"gh"]
    spilled.append(b"i")
    assert bytes(spilled.view()) == b"abcdefghi"
    spilled.close()


@pytest.mark.parametrize("is_dropped", [False, True])
def test_the_file_has_no_name_and_is_closed_even_if_it_is_only_dropped(tmp_path: Path, is_dropped: bool) -> None:
    """A process that is killed leaves no file."""
    spilled = SpillFile(str(tmp_path))
    spilled.append(b"abc")

    assert bytes(spilled.view()) == b"abc"
    assert list(tmp_path.iterdir()) == []
    assert open_files(tmp_path) >= 1
    if not is_dropped:
        spilled.close()
        spilled.close()
        assert repr(spilled) == f"<SpillFile of 3 bytes in {tmp_path}, closed>"
    del spilled
    gc.collect()

    assert open_files(tmp_path) == 0


def test_a_view_outlives_the_file(tmp_path: Path) -> None:
    """The traceback of an error may hold one; the mapping ends with it."""
    spilled = SpillFile(str(tmp_path))
    spilled.append(b"abc")
    view = spilled.view()

    spilled.close()

    assert bytes(view) == b"abc"
    del view, spilled
    gc.collect()
    assert open_files(tmp_path) == 0


def test_a_directory_that_cannot_be_written_to_is_named() -> None:
    with pytest.raises(SerdeError, match=r"cannot be kept in a file in /nowhere: .*No such file"):
        SpillFile("/nowhere")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tempfile.TemporaryFile",
        lambda **kwargs: open("/dev/full", "w+b", buffering=kwargs["buffering"]),  # noqa: SIM115
    )
    spilled = SpillFile(str(tmp_path))

    with pytest.raises(SerdeError, match="No space left on device"):
        spilled.append(b"x" * (4 << 20))
    spilled.close()
