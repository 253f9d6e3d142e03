"""The page of options for users is the text that the tables print."""

import pytest

from flowlet.common.option import Option
from flowlet.common.options.known_options import KNOWN
from tests import options_page


def test_the_page_is_what_the_tables_print() -> None:
    """``python -m tests.options_page --write`` makes it so."""
    text = options_page.PAGE.read_text(encoding="utf-8")

    assert options_page.page(text) == text
    assert all(table in text for table in options_page.tables())


def test_every_option_says_what_it_decides() -> None:
    meanings = options_page.meanings()

    assert [option.name for option in KNOWN if not meanings.get(option.name) or not option.allowed] == []


def test_a_page_that_lacks_an_option_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test above is able to fail."""
    added = Option("flowlet.new", str, "a text")
    monkeypatch.setattr(options_page, "KNOWN", (*KNOWN, added))
    monkeypatch.setattr(options_page, "meanings", lambda: {"flowlet.new": "what it decides"})

    assert options_page.main([]) == 1
    assert "is not what the tables print" in capsys.readouterr().out
    assert "| `flowlet.new` | a text |  | what it decides |\n" in options_page.page("a | b\n---|---\nc | d\n")
