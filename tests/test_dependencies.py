"""The drawing of packages, on small made-up ones, and the packages of others that ours need."""

import ast
import re
import sys
import tomllib
from importlib import metadata

from tests.dependencies import diagram, package_imports
from tests.syntax_trees import statements_of
from tests.test_layering import ROOT, Checker, checker_of_product

NEWER_STDLIB = {"compression"}  # of Python 3.14, imported there alone
TYPE_CHECKERS = {"typing_extensions"}  # imported for type checkers alone, which bring it
# Modules that only extras need.
OF_EXTRAS = re.compile(r"\.(spark|rocksdb|database_driver)\b")
PURE = '"""Text.\n\nSide: pure.\n"""\n'


def drawn(**imports: str) -> list[str]:
    """Return the diagram of packages; each keyword is a package with one module, which imports the listed ones."""
    sources = {
        f"flowlet.{name}.{name}_module": PURE
        + "".join(f"import flowlet.{target}.{target}_module\n" for target in targets.split())
        for name, targets in imports.items()
    }
    return [line.strip() for line in diagram(package_imports(Checker(sources)))]


def test_what_follows_from_other_arrows_is_left_out() -> None:
    assert drawn(low="", middle="low", high="low middle") == [
        "flowchart TD",
        *('p0["low"]', 'p1["middle"]', 'p2["high"]'),
        *("p1 --> p0", "p2 --> p1"),
    ]


def test_packages_that_import_each_other_are_one_box() -> None:
    assert drawn(low="", one="two low", two="three", three="one") == [
        "flowchart TD",
        'p0["low"]',
        'p1["knot of 3: one, three, two"]',
        "p1 --> p0",
    ]


def test_our_own_packages_have_no_knot() -> None:
    assert not [line for line in diagram(package_imports(checker_of_product())) if "knot" in line]


def test_every_third_party_import_is_a_declared_dependency() -> None:
    """Every import of the packages is in ``dependencies`` (for spark, rocksdb and postgres in an extra), and each
    dependency is imported.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[^A-Za-z0-9_-]", line)[0].lower() for line in project["dependencies"]}
    distributions = metadata.packages_distributions()
    imported = set()
    for name, module in checker_of_product().modules.items():
        for node in () if OF_EXTRAS.search(name) else statements_of(module.tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            imported |= {each.partition(".")[0] for each in names}

    third_party = imported - set(sys.stdlib_module_names) - NEWER_STDLIB - TYPE_CHECKERS - {"flowlet", "netstack"}

    assert {distributions[name][0].lower() for name in third_party} == declared
