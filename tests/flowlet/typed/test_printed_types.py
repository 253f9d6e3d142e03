"""The lines that ``print`` writes for records of every type, beside those that PyFlink 2.3 wrote for one program."""

from pathlib import Path

import pytest

from tests.flowlet.typed import printed_types

FOLDER = Path(__file__).parent


@pytest.mark.slow
def test_every_type_is_printed_as_pyflink_prints_it(capfd: pytest.CaptureFixture[str]) -> None:
    printed_types.main("flowlet")

    assert capfd.readouterr().out.splitlines() == (FOLDER / "printed_types.txt").read_text("utf-8").splitlines()
