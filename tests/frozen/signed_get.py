"""A client of the REST interface without code of the product: the function of ``docs/rest.md``.  It signs as clients of
the last version do, so the signature stays, too.

Side:   any.
"""

import re
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "rest.md"


def signed_get(host: str, port: int, secret: bytes, path: str) -> Any:
    """The document of a GET.  Raises AssertionError: the answer is another one than 200."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(program, str(PAGE), "exec"), names)
    status, document = names["call"]("GET", host, port, secret, path)
    assert status == 200, (status, document)
    return document
