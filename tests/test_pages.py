"""The pages for readers: each stands in the index of its folder, and each link of a page leads to a file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("flowlet/*.md"), *ROOT.glob("netstack/*.md")])
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def linked_from(page: Path) -> set[Path]:
    """The files of this repository to which a page links."""
    targets = _LINK.findall(page.read_text(encoding="utf-8"))
    return {(page.parent / each).resolve() for each in targets if not each.startswith(("https://", "http://"))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    missing = sorted(str(each) for each in linked_from(page) if not each.exists())

    assert not missing, f"{page.relative_to(ROOT)} links to {missing}"


@pytest.mark.parametrize("folder", [DOCS, DOCS / "maintainers"], ids=lambda folder: folder.name)
def test_each_page_stands_in_the_index_of_its_folder(folder: Path) -> None:
    """Each page is linked from its folder's index; ``docs/decisions`` is its own index, and the index of maintainers
    has ``docs/moved.md``.
    """
    pages = set(folder.glob("*.md")) - {folder / "README.md", DOCS / "moved.md"}

    assert pages <= linked_from(folder / "README.md")
