"""Bugs of the storage of checkpoints: Flink's, and bugs that would make a checkpoint unreadable or a stranger's.

Invariants: as in ``registry.py``.
"""

from typing import Final

from tests.mutants.patching import Mutant

_FILES: Final = "tests/flowlet/storage/test_local_files.py"
_STORAGE: Final = "tests/flowlet/storage/test_checkpoint_storage.py"
_CODEC: Final = "tests/flowlet/checkpoint/task/test_state_codec.py"
_POWER: Final = f"{_FILES}::test_what_is_acknowledged_survives_a_loss_of_power_at_any_moment"

STORAGE_BUGS: Final = (
    Mutant(
        "a_file_is_renamed_before_it_is_synced",
        "35217 36421",
        "a state is acknowledged although a loss of power may cut it off",
        "flowlet.storage.storage_files",
        "            os.fsync(fd)\n        finally",
        "            pass\n        finally",
        _POWER,
    ),
    Mutant(
        "a_directory_is_not_synced",
        "35217",
        "a state is acknowledged although a loss of power may take its name",
        "flowlet.storage.storage_files",
        "        raise\n    _sync_folder(parent)",
        "        raise",
        _POWER,
    ),
    Mutant(
        "a_new_directory_is_not_synced",
        "storage",
        "a loss of power may take the directory of a checkpoint",
        "flowlet.storage.storage_files",
        "                        _sync_folder(fd)\n",
        "",
        _POWER,
    ),
    Mutant(
        "the_directory_of_another_process_is_not_synced",
        "storage",
        "a loss of power may take a directory whose maker ended before its fsync",
        "flowlet.storage.state_files",
        "            self._files.settle(each)",
        "            pass",
        f"{_FILES}::test_a_directory_that_another_process_made_and_did_not_settle_survives",
    ),
    Mutant(
        "files_are_removed_before_the_manifest",
        "storage",
        "a checkpoint that is being discarded looks complete, and lacks files",
        "flowlet.storage.checkpoint_storage",
        "        self._files.remove(folder, MANIFEST)\n",
        "",
        f"{_FILES}::test_the_manifest_is_gone_for_good_before_a_file_is_removed",
    ),
    Mutant(
        "a_full_disk_leaves_half_a_file",
        "storage",
        "each failed checkpoint makes a full disk fuller",
        "flowlet.storage.storage_files",
        "            os.unlink(temporary, dir_fd=parent)",
        "            pass",
        f"{_FILES}::test_a_step_that_fails_leaves_no_file",
    ),
    Mutant(
        "a_changed_state_is_unpickled",
        "A7",
        "who can write into the directory runs code in the job",
        "flowlet.storage.state_files",
        " or not hmac.compare_digest(hashlib.sha256(content).digest(), handle.sha256)",
        "",
        f"{_STORAGE}::test_a_damaged_state_or_manifest_is_refused",
    ),
    Mutant(
        "a_forged_manifest_is_read",
        "A7",
        "who can write into the directory names the hashes himself",
        "flowlet.storage.manifest",
        "        if not hmac.compare_digest(mac,",
        "        if False and not hmac.compare_digest(mac,",
        f"{_STORAGE}::test_a_damaged_state_or_manifest_is_refused",
    ),
    Mutant(
        "an_old_manifest_is_read_in_the_place_of_a_new_one",
        "A7",
        "a job is set back to an older state without a word",
        "flowlet.storage.checkpoint_storage",
        "or manifest.is_savepoint or self._folder(manifest.checkpoint_id) != folder:",
        "or manifest.is_savepoint:",
        f"{_STORAGE}::test_a_manifest_of_another_checkpoint_or_job_is_refused",
    ),
    Mutant(
        "a_link_leads_out_of_the_storage",
        "A7",
        "discarding a checkpoint removes others' files",
        "flowlet.storage.storage_files",
        "_FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd",
        "_FOLDER_FLAGS, dir_fd",
        f"{_STORAGE}::test_discarding_follows_no_link",
    ),
    Mutant(
        "restored_arrays_are_read_only",
        "storage",
        "an operator that computes in its arrays fails after a restore",
        "flowlet.checkpoint.task.state_codec",
        "copies = list(map(bytearray, buffers))\n        unpickler",
        "copies = list(map(bytes, buffers))\n        unpickler",
        f"{_CODEC}::test_arrays_come_back_writable_and_on_their_own",
    ),
    Mutant(
        "a_class_of_the_main_module_goes_by_name",
        "storage",
        "the main module of the TaskManager that restores lacks the class",
        "flowlet.serde.pickles.record_pickle",
        "return _MAIN in data or any",
        "return any",
        f"{_CODEC}::test_classes_of_the_main_module_come_back_where_the_main_module_is_another",
    ),
)
