"""``python -m tests.mutants.one NUMBER``: run the named test of one mutant with its patch; exit as pytest does."""

import os
import sys

os.environ.setdefault("NETSTACK_DEBUG", "1")

from tests.mutants.patching import install
from tests.mutants.registry import MUTANTS


def main(number: int, *, is_patched: bool) -> int:
    """Run the test; pytest's exit status."""
    mutant = MUTANTS[number]
    if is_patched:
        install(mutant.module, mutant.old, mutant.new)
    import pytest

    return int(pytest.main(["-x", "-q", "--no-header", "-p", "no:cacheprovider", "--tb=line", mutant.killed_by]))


sys.exit(main(int(sys.argv[1]), is_patched=sys.argv[-1] != "--healthy"))
