"""Parts on disk, by their digests."""

import hashlib
import os
from pathlib import Path

import pytest

from flowlet.errors import StorageError
from flowlet.shipping.bundle_store import PartLostError, PartStore

CONTENT = b"content"
DIGEST = hashlib.sha256(CONTENT).digest()


def opened(folder: Path) -> PartStore:
    store = PartStore(lambda: folder)
    store.sizes()
    return store


def test_a_part_is_there_until_it_is_removed_also_for_another_process(tmp_path: Path) -> None:
    opened(tmp_path / "parts").put(DIGEST, CONTENT)

    store = PartStore(lambda: tmp_path / "parts")
    assert store.sizes() == {DIGEST: 7}
    assert store.read(DIGEST) == CONTENT
    store.remove(DIGEST)
    store.remove(DIGEST)
    assert store.sizes() == {}


def test_sizes_are_in_the_order_of_writing_and_what_was_cut_off_is_removed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    others = [hashlib.sha256(bytes([number])).digest() for number in range(3)]
    for position, digest in enumerate(others):
        store.put(digest, bytes([position]))
        os.utime(tmp_path / digest.hex(), ns=(position, position))
    (tmp_path / f"{DIGEST.hex()}.1234").write_bytes(b"half")

    assert list(store.sizes()) == others
    assert len(os.listdir(tmp_path)) == 3


def test_a_part_that_is_gone_or_has_changed_is_an_error(tmp_path: Path) -> None:
    store = opened(tmp_path)

    with pytest.raises(PartLostError, match="is gone; submit the job again"):
        store.read(DIGEST)
    (tmp_path / DIGEST.hex()).write_bytes(b"other")
    with pytest.raises(PartLostError, match="has changed; submit the job again"):
        store.read(DIGEST)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="cannot be read"):
        opened(tmp_path / "file")
