"""Names of test cases."""


def stable_repr(value: object) -> str:
    """Return a name that is equal in every process: no address, no set in an order that depends on the process."""
    text = repr(value)
    return type(value).__name__ if " at 0x" in text or "frozenset" in text or "{" in text else text[:60]
