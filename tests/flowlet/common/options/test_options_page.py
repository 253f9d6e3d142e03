"""The page of options for users says what the table says."""

from enum import Enum
from pathlib import Path
from typing import Any

from flowlet.common.options.known_options import FIXED, KNOWN
from flowlet.common.options.option import Option
from flowlet.common.settings.tuning_options import IGNORED, IGNORED_PREFIXES

PAGE = Path(__file__).resolve().parents[4] / "docs" / "options.md"


def shown(default: Any) -> str:
    """A default as the page has it."""
    match default:
        case None:
            return ""
        case bool():
            return str(default).lower()
        case Enum():
            return str(default.value)
        case float():
            return f"{default:g}"
        case _:
            return str(default)


def row_of(option: Option[Any]) -> list[str]:
    allowed = f"only `{option.default}`" if option in FIXED else option.allowed
    return [", ".join(f"`{name}`" for name in option.names), allowed, shown(option.default)]


def test_every_option_is_on_the_page_with_its_names_values_and_default() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line[:3] == "| `"
    ]

    assert [row[:3] for row in rows] == [row_of(option) for option in KNOWN]
    assert all(meaning for *_, meaning in rows)


def test_every_option_without_an_effect_is_on_the_page_with_the_reason() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if " | " in line and line.startswith("`")]
    found = {
        name.strip(" `"): reason.strip()
        for names, reason in (line.split(" | ") for line in lines)
        for name in names.split(",")
    }

    assert found == IGNORED | {f"{prefix}*": reason for prefix, reason in IGNORED_PREFIXES.items()}
