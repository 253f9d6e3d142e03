import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _programs_do_without_debug_mode() -> Iterator[None]:
    """Programs run without asyncio's debug mode, as in other tests of whole jobs (``tests/conftest.py``)."""
    with pytest.MonkeyPatch.context() as patch:
        if "FLOWLET_TESTS_DEBUG_JOBS" not in os.environ:
            patch.delenv("PYTHONASYNCIODEBUG", raising=False)
        yield
