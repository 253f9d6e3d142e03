"""Stored savepoints: one ``.tar.xz`` each, with the files of the savepoint, the working directory of the run, and its
results.
"""

import io
import json
import lzma
import tarfile
from pathlib import Path
from typing import Any, Final

STORED: Final = Path(__file__).parent / "stored"
FACTS: Final = "facts.json"


def path_of(folder: Path, name: str, backend: str) -> Path:
    return folder / f"{name}-{backend}.tar.xz"


def pack(path: Path, root: Path, facts: dict[str, Any]) -> None:
    """Write all files below ``root`` and the facts; equal contents make equal bytes."""
    contents = {str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*") if each.is_file()}
    contents[FACTS] = json.dumps(facts, indent=1, ensure_ascii=False).encode()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in sorted(contents.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    path.write_bytes(lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def unpack(path: Path, root: Path) -> dict[str, Any]:
    """Write the files below ``root``; returns the facts."""
    with tarfile.open(path, "r:xz") as tar:
        tar.extractall(root, filter="data")
    facts: dict[str, Any] = json.loads((root / FACTS).read_text("utf-8"))
    return facts
