"""A client of the REST interface whose requests are made without code of the product: it signs as clients of the last
version do, so the signature stays, too.
"""

import re
from pathlib import Path
from typing import Any, Final

from flowlet.testing import MiniCluster

_TIMEOUT_S: Final = 60.0
_LABEL: Final = "flowlet request v1"


def signed_get(cluster: MiniCluster, path: str) -> Any:
    """The document of a GET.  Raises AssertionError: the answer is another one than 200."""
    host, port, secret = cluster.target.host, cluster.target.port, cluster.target.secret
    assert secret is not None, "a MiniCluster makes one"
    authority, nonce, digest = f"{host}:{port}", os.urandom(16).hex(), hashlib.sha256(b"").hexdigest()
    now_ms = str(time.time_ns() // 1_000_000)
    fields = (_LABEL, "GET", authority, path, digest, now_ms, nonce)
    signed = b"".join(len(each).to_bytes(4, "big") + each.encode() for each in fields)
    signature = hmac.digest(secret, signed, "sha256").hex()
    connection = HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request(
            "GET", path, headers={"Host": authority, "X-Flowlet-Auth": f"v1 {now_ms} {nonce} {digest} {signature}"}
        )
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    assert answer.status == 200, (answer.status, body)
    return json.loads(body)
