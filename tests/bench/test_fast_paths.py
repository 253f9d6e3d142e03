"""Each fast path can be switched off, so that its gain can be measured."""

from pathlib import Path

import pytest

from bench import fast_paths
from bench.check import CheckError
from bench.fast_paths import FAST_PATHS, ROOT, Edit, FastPath, edited, row_of, write_page
from bench.gauges import GAUGES
from bench.report import Result


@pytest.mark.parametrize("path", FAST_PATHS, ids=lambda path: path.name)
def test_its_texts_stand_once_and_what_replaces_them_compiles(path: FastPath, tmp_path: Path) -> None:
    for edit in path.edits:
        (tmp_path / edit.module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / edit.module).write_text((ROOT / edit.module).read_text())

    edited(tmp_path, path)

    for edit in path.edits:
        text = (tmp_path / edit.module).read_text()
        compile(text, edit.module, "exec")
        assert text != (ROOT / edit.module).read_text()
    assert path.gauge in GAUGES
    assert all((ROOT / module).is_file() for module in path.modules)


def test_a_text_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("x = 1\n")
    path = FastPath("a path", (), (Edit("module.py", "y = 1", "y = 2"),), "words", "words")

    with pytest.raises(CheckError, match=r"module\.py has 'y = 1' 0 times: mend 'a path'"):
        edited(tmp_path, path)


def test_rows_replace_those_of_the_same_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n<!-- rows: python -m bench.fast_paths --page -->\n<!-- end of the rows -->\nend\n")
    monkeypatch.setattr(fast_paths, "PAGE", page)
    first, second = FAST_PATHS[:2]

    write_page(
        [row_of(first, Result("", "x", [1.0], {}, case="")), row_of(second, Result("", "x", [2.0], {}, case=""))]
    )
    write_page([row_of(first, Result("", "x", [1.5, 3.0, 1.4], {}, case=""))])

    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert [row.split("|")[-2].strip() for row in rows] == ["1.50 (1.40 to 3.00)", "2.00 (2.00 to 2.00)"]
    assert page.read_text().endswith("<!-- end of the rows -->\nend\n")
