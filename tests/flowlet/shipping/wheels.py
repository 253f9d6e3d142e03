"""Makes small wheels for tests, which pip can install without an index."""

import zipfile
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str, modules: dict[str, str], needs: str = "") -> Path:
    """Return a wheel with these modules, by file name; ``needs``: another package."""
    folder.mkdir(parents=True, exist_ok=True)
    information = f"{name}-{version}.dist-info"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    files = {
        **modules,
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{each},,\n" for each in (*files, f"{information}/RECORD"))
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for each, text in {**files, f"{information}/RECORD": record}.items():
            wheel.writestr(each, text)
    return path
