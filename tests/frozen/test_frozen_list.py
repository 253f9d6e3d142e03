"""Tests of ``tests.frozen.frozen_list``: its words about differences, and the changes that it accepts."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.frozen import frozen_list
from tests.frozen.__main__ import LISTS, main
from tests.frozen.frozen_list import FOLDER, FrozenList, items_of


@pytest.fixture
def today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return today's items; the list is called ``things``."""
    monkeypatch.setattr(frozen_list, "FOLDER", tmp_path / "tests" / "frozen" / "lists")
    frozen_list.FOLDER.mkdir(parents=True)
    found = ["a  1", "b", "c  3"]
    monkeypatch.setitem(LISTS, "things", FrozenList("things", "Things", lambda: found, "Or say where they are."))
    LISTS["things"].write(accepts_breaks=False)
    return found


def things() -> FrozenList:
    return LISTS["things"]


def test_a_list_is_text_of_one_sorted_item_per_line(today: list[str]) -> None:
    today.insert(0, "aa")
    things().write(accepts_breaks=False)

    assert things().path.read_text(encoding="utf-8") == (
        "# Things.  python -m tests.frozen --write things adds lines.\na  1\naa\nb\nc  3\n"
    )
    things().check()


def test_what_is_gone_changed_or_added_is_said_with_what_to_do(today: list[str]) -> None:
    today[:] = ["a  2", "c  3", "d"]

    with pytest.raises(AssertionError) as failed:
        things().check()

    assert str(failed.value).splitlines()[:6] == [
        "Things differ from tests/frozen/lists/things.txt:",
        "  gone:    b",
        "  changed: a  1",
        "      now: a  2",
        "  added:   d",
        "What is gone or has changed breaks what was written for the last version: put it back. Or say where they are.",
    ]
    assert "Accept it: python -m tests.frozen --write things" in str(failed.value)
    assert "--write --break things" in str(failed.value)


def test_an_addition_is_no_break(today: list[str]) -> None:
    today.append("d")

    told = things().complaint(things().difference())

    assert "--break" not in told
    assert "added:   d" in told


def test_writing_accepts_additions_alone(today: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    today[:] = ["a  2", "d"]

    code = main(["--write", "things"])

    assert code == 1
    assert things().read() == {"a": "1", "b": "", "c": "3", "d": ""}
    assert "gone:    b" in capsys.readouterr().out


def test_a_break_is_accepted_by_name(today: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    today[:] = ["a  2"]

    assert main(["things"]) == 1
    assert main(["--write", "--break", "things"]) == 0
    assert main(["things"]) == 0
    assert things().read() == {"a": "2"}
    with pytest.raises(SystemExit):
        main(["--write", "--break"])
    assert "the names of the lists" in capsys.readouterr().err


@pytest.mark.parametrize("lines", [["a  1", "a  2"], ["a\nb"]])
def test_what_is_no_item_is_refused(lines: Iterable[str]) -> None:
    with pytest.raises(ValueError, match="no single item"):
        items_of(lines)


def test_every_list_has_a_file_and_every_file_a_list() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(LISTS)
    assert all(each.read() for each in LISTS.values())
    for each in LISTS.values():
        lines = each.path.read_text(encoding="utf-8").splitlines()[1:]
        assert [line.partition("  ")[0] for line in lines] == sorted(line.partition("  ")[0] for line in lines)
