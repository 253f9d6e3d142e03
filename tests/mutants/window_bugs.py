"""Bugs of windows: of the operator, of merging windows, and of data that is kept outside of the state.

Invariants: as in ``registry.py``.
"""

from typing import Final

from tests.mutants.patching import Mutant

_OPERATOR: Final = "flowlet.windows.window_operator"
_ALIGNED: Final = "flowlet.windows.aligned_windows"
_STATES: Final = "flowlet.windows.window_states"
_TESTS: Final = "tests/flowlet/windows/test_window_operator.py"

WINDOW_BUGS: Final = (
    Mutant(
        "a_snapshot_misses_the_cells",
        "windows",
        "what windows keep outside of the state is lost by a restart",
        _OPERATOR,
        "            self._aligned.write_all()\n",
        "            pass\n",
        f"{_TESTS}::test_snapshots_hold_what_is_kept_outside_of_the_state",
    ),
    Mutant(
        "a_late_record_reads_an_old_state",
        "windows",
        "a window that is evaluated again has only its late records",
        _OPERATOR,
        "                self._aligned.write(self.ctx.key_context.current_key, window)\n",
        "                pass\n",
        "tests/windows/test_window_cases.py::test_windows_are_those_of_the_reference",
    ),
    Mutant(
        "merged_windows_keep_their_old_end",
        "windows",
        "a session is evaluated at the end that it had before it grew",
        _OPERATOR,
        "            self._delete_timer(former, self._cleanup_time(former))\n",
        "            pass\n",
        f"{_TESTS}::test_a_session_that_grew_has_one_end",
    ),
    Mutant(
        "a_window_leaves_its_state",
        "windows",
        "the state of a window that was written for a snapshot stays for ever",
        _ALIGNED,
        "            self._contents.clear()\n        if found is _MISSING or found is None:",
        "        if found is _MISSING or found is None:",
        f"{_TESTS}::test_nothing_is_left_of_a_window_that_is_over",
    ),
    Mutant(
        "the_states_of_merged_windows_are_lost",
        "windows",
        "of sessions that become one only the first keeps its records",
        _STATES,
        "            state.add_all(merged or ())\n",
        "            pass\n",
        f"{_TESTS}::test_sessions_that_meet_become_one",
    ),
)
