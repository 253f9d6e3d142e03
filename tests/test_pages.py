"""The pages for readers: each stands in the index of its folder, each link of a page leads to a file, and the page on
additions names what the code has.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("flowlet/*.md"), *ROOT.glob("netstack/*.md")])
HOW_TO_ADD = (DOCS / "maintainers" / "how-to-add.md").read_text(encoding="utf-8")
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


# -- names of the code in backticks

_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
TOPS = ("flowlet", "netstack", "tests")


def quoted(page: str) -> list[str]:
    """Return the words in backticks that are names or paths, without blocks of code; of a call what is called."""
    words = [each.partition("(")[0] for each in re.findall(r"`([^`\n]+)`", _FENCED.sub("", page))]
    modules = re.findall(r"`python -m ([\w.]+)", page)
    return [*(each for each in words if re.fullmatch(r"[\w./]+", each)), *modules]


@cache
def sources() -> dict[str, str]:
    """The texts of our modules by their paths."""
    paths = [path for top in TOPS for path in (ROOT / top).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


@cache
def all_code() -> str:
    return "\n".join(sources().values())


def is_defined(name: str) -> bool:
    """Whether some module has a function, class, variable, attribute or parameter with this name."""
    code = all_code()  # megabytes: each pattern begins with letters, which makes the search ten times as fast
    begins = (f"def {name}(", f"class {name}(", f"class {name}:")
    return any(each in code for each in begins) or re.search(rf"{name}(?<!\w{name})(?:: | ?=)", code) is not None


@cache
def places() -> str:
    """The paths of all files, one per line, for a search; folders are beginnings of them."""
    others = [str(path.relative_to(ROOT)) for path in [*PAGES, *(ROOT / "flowlet").rglob("*.pyi")]]
    return "".join(f"/{path}\n" for path in [*sources(), *others])


def is_path(name: str) -> bool:
    """Whether a file or folder has this path, or one that ends with it; SYSTEM stands for the name of a system."""
    pattern = re.escape(name).replace("SYSTEM", r"\w+")
    return re.search(rf"/{pattern}{'' if name.endswith('/') else '$'}", places(), re.MULTILINE) is not None


def is_part(owner: type, name: str) -> bool:
    """Whether a class has this part, or assigns it to ``self``."""
    ours = [each for each in owner.__mro__ if each.__module__.startswith(TOPS)]
    attribute = re.compile(rf"\bself\.{name}\b|^ +{name}: ", re.MULTILINE)
    return hasattr(owner, name) or any(attribute.search(inspect.getsource(each)) for each in ours)


def classes_named(name: str) -> Iterator[type]:
    for path, text in sources().items():
        if re.search(rf"class {name}(?<=^class {name})\b", text, re.MULTILINE):
            yield getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)


def resolves(name: str) -> bool:
    """Whether a name is one of our code: a path, ``package.module``, ``package.Class``, ``Class.method``, or a name in
    some module.
    """
    if "/" in name or name.endswith((".py", ".md", ".pyi")):
        return is_path(name)
    owner, _, part = name.rpartition(".")
    if not owner:
        return is_defined(name)
    if owner.partition(".")[0] in TOPS:
        is_module = is_path(f"{name.replace('.', '/')}.py") or is_path(f"{name.replace('.', '/')}/")
        return is_module or hasattr(importlib.import_module(owner), part)
    return any(is_part(each, part) for each in classes_named(owner))


def test_names_on_the_page_about_additions_are_names_of_the_code() -> None:
    unknown = [name for name in quoted(HOW_TO_ADD) if not resolves(name)]

    assert not unknown, f"docs/maintainers/how-to-add.md names {unknown}, which are neither paths nor names of the code"


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        ("flowlet.testing.OperatorHarness", True),
        ("flowlet.testing.NoHarness", False),
        ("tests.frozen", True),
        ("Task._running", True),
        ("Task.send_control_mail", False),
        ("process_operator.py", True),
        ("flowlet/connectors/SYSTEM/api.py", True),
        ("flowlet/no_such_room/", False),
        ("PROTOCOL_VERSION", True),
        ("no_such_name_anywhere", False),
    ],
)
def test_a_name_is_known_if_the_code_has_it(name: str, *, is_known: bool) -> None:
    assert resolves(name.replace("no_such_name_anywhere", "no_such_name_" + "anywhere")) == is_known
