"""Messages of drivers, on one line and without a password."""

from flowlet.connectors.database.database_driver import without_password


def test_a_password_is_hidden() -> None:
    assert without_password("FATAL:\n  password s3cret\tfailed", "s3cret") == "FATAL: password *** failed"
    assert without_password("nothing to hide", None) == "nothing to hide"
