"""The drawing of packages, on small made-up ones."""

from tests.dependencies import diagram, package_imports
from tests.test_layering import Checker, checker_of_product

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
