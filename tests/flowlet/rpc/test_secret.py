"""Tests of ``flowlet.rpc.secret``: how the file is made, and which files are refused."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from flowlet.errors import ConfigError
from flowlet.rpc import secret as secret_module
from flowlet.rpc.early_signals import STOP_SIGNALS
from flowlet.rpc.secret import default_secret_file, load_or_create_secret, load_secret


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_missing_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"

    secret = load_or_create_secret(path)

    assert len(secret) == 32
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert path.read_text() == secret.hex() + "\n"
    assert os.listdir(path.parent) == ["secret"]
    assert secret != load_or_create_secret(tmp_path / "other")


def test_an_existing_file_is_used(tmp_path: Path) -> None:
    path = written(tmp_path / "secret", "ab" * 32)

    assert load_or_create_secret(path) == bytes.fromhex("ab" * 32)


def test_a_stop_signal_waits_until_the_temporary_file_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that ends the process at once left the secret in a file of another name."""
    blocked: list[set[int]] = []
    link = os.link

    def noting(*arguments: Any) -> None:
        blocked.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        link(*arguments)

    monkeypatch.setattr(os, "link", noting)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    load_or_create_secret(tmp_path / "secret")

    assert blocked[0] >= set(STOP_SIGNALS)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_who_looks_for_a_cluster_makes_no_file(tmp_path: Path) -> None:
    """A misspelled name made a new secret, and then no cluster knew it."""
    path = tmp_path / "new" / "secret"

    with pytest.raises(
        ConfigError, match=r"new/secret does not exist; a JobManager makes it .* \(\$FLOWLET_SECRET_FILE does, too\)"
    ):
        load_secret(path)
    assert not path.parent.exists()

    made = load_or_create_secret(path)
    assert load_secret(path) == made

    path.chmod(0o640)
    with pytest.raises(ConfigError, match="open to other users"):
        load_secret(path)


def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    """A process that comes second reads the file of the first one."""
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(load_or_create_secret(tmp_path / "secret"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len(set(found)) == 1
    assert os.listdir(tmp_path) == ["secret"]


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = written(tmp_path / "secret", "ab" * 32)

    secret_module._create(path)

    assert path.read_text() == "ab" * 32
    assert os.listdir(tmp_path) == ["secret"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644])
def test_a_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "secret", "ab" * 32, mode)

    with pytest.raises(ConfigError, match=f"mode {mode:o}.*chmod 600 {path}"):
        load_or_create_secret(path)


@pytest.mark.parametrize("text", ["", "ab" * 31, "ab" * 33, "zz" * 32, "ab" * 32 + "é", "x" * 10_000])
def test_a_file_with_something_else_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "secret", text)

    with pytest.raises(ConfigError, match="does not hold 64 hex digits") as caught:
        load_or_create_secret(path)
    assert not text or text not in str(caught.value)


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    """A dangling link is refused, too: no file is made where it points."""
    (tmp_path / "link").symlink_to(tmp_path / "target")

    with pytest.raises(ConfigError, match="secret file"):
        load_or_create_secret(tmp_path / "link")
    assert not (tmp_path / "target").exists()


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)

    with pytest.raises(ConfigError, match="not a regular file"):
        load_or_create_secret(tmp_path / "pipe")


def test_a_folder_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    written(tmp_path / "file", "")

    with pytest.raises(ConfigError, match=f"secret file {tmp_path}"):
        load_or_create_secret(tmp_path / "file" / "secret")


def test_the_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "secret", "ab" * 32)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)

    with pytest.raises(ConfigError, match="belongs to user"):
        load_or_create_secret(path)


@pytest.mark.parametrize("value", [None, "", "/mine"])
def test_the_environment_names_the_file_which_is_in_the_home_directory_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FLOWLET_SECRET_FILE", raising=False)
    if value is not None:
        monkeypatch.setenv("FLOWLET_SECRET_FILE", value and f"{tmp_path}{value}")
    expected = tmp_path / "mine" if value else tmp_path / ".flowlet" / "secret"

    load_or_create_secret()

    assert default_secret_file() == expected
    assert expected.exists()
