"""Draw which package imports which: ``python -m tests.dependencies [CHECKOUT]`` prints a Mermaid diagram.

Packages are drawn in layers: each imports only those above it in the printed text.  An arrow that follows from others
is left out.  Packages that import each other, directly or not, are a knot, and are drawn as one box.  Modules in the
root of flowlet and of netstack are left out.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.test_layering import ROOT, Checker, package_of, sources_of

_ARGUMENTS: Final = 2
_MAX_NAMES: Final = 12


def package_imports(checker: Checker) -> dict[str, set[str]]:
    """Return, for each package, the packages that it imports."""
    edges: dict[str, set[str]] = {}
    for name, targets in checker.edges().items():
        source = package_of(name)
        if not checker.modules[name].is_package and source != name:
            inside = {
                package_of(target)
                for target in targets
                if not checker.modules[target].is_package and package_of(target) != target
            }
            edges.setdefault(source, set()).update(inside - {source})
    return edges


def knots(edges: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    """Return, for each package, all packages that it imports and that import it, directly or not; as a rule only
    itself.
    """
    reached = {name: _reached(edges, name) for name in edges}
    return {name: frozenset({name} | {other for other in reached[name] if name in reached[other]}) for name in edges}


def _reached(edges: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in edges[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


def diagram(edges: Mapping[str, set[str]]) -> Iterator[str]:
    knot_of = knots(edges)
    boxes = {
        knot: {knot_of[target] for name in knot for target in edges[name]} - {knot} for knot in set(knot_of.values())
    }
    reached = {box: _closure(boxes, box) for box in boxes}
    yield "flowchart TD"
    order = sorted(boxes, key=lambda box: (len(reached[box]), sorted(box)))
    number = {box: f"p{index}" for index, box in enumerate(order)}
    for box in order:
        yield f'    {number[box]}["{_label(box)}"]'
    for box in order:
        indirect = {far for near in boxes[box] for far in reached[near]}
        for target in sorted(boxes[box] - indirect, key=lambda each: number[each]):
            yield f"    {number[box]} --> {number[target]}"


def _closure(boxes: Mapping[frozenset[str], set[frozenset[str]]], start: frozenset[str]) -> set[frozenset[str]]:
    found: set[frozenset[str]] = set()
    waiting = [start]
    while waiting:
        for target in boxes[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


def _label(box: frozenset[str]) -> str:
    names = sorted(name.removeprefix("flowlet.") for name in box)
    return (
        names[0]
        if len(names) == 1
        else f"knot of {len(names)}: {', '.join(names[:_MAX_NAMES])}{', ...' * (len(names) > _MAX_NAMES)}"
    )


def main(root: Path) -> None:
    """Print the diagram of a checkout, and its errors."""
    sources, packages = sources_of(root)
    checker = Checker(sources, packages)
    edges = package_imports(checker)
    print("\n".join(diagram(edges)))
    tied = [knot for knot in set(knots(edges).values()) if len(knot) > 1]
    print(
        f"{len(edges)} packages, {len(sources) - len(packages)} modules, {len(tied)} knots: {sorted(map(len, tied))}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) == _ARGUMENTS else ROOT)
