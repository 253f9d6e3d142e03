"""A client of the REST interface without code of the product: the function of ``docs/rest.md``.  It signs as clients of
the last version do, so the signature stays, too.
"""

import re
from pathlib import Path
from typing import Any, Final

from flowlet.testing import MiniCluster

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "rest.md"


def signed_get(cluster: MiniCluster, path: str) -> Any:
    """The document of a GET.  Raises AssertionError: the answer is another one than 200."""
    host, port, secret = cluster.target.host, cluster.target.port, cluster.target.secret
    assert secret is not None, "a MiniCluster makes one"
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(program, str(PAGE), "exec"), names)
    status, document = names["call"]("GET", host, port, secret, path)
    assert status == 200, (status, document)
    return document
