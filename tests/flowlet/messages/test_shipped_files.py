"""The JobManager believes nothing that a client says about its files."""

import pytest

from flowlet.errors import JobGraphError
from flowlet.messages.program_bundle import (
    MAX_JOB_FILE_BYTES,
    PART_BYTES,
    ShippedArchive,
    ShippedFile,
    ShippedFiles,
    check_shipped_files,
)

DIGEST = bytes(32)


def test_files_whose_parts_make_their_size_are_accepted() -> None:
    files = ShippedFiles([ShippedFile("a.py", PART_BYTES + 1, [DIGEST, DIGEST]), ShippedFile("empty.py", 0, [])])

    check_shipped_files(files)

    assert list(files.parts()) == [DIGEST]
    assert files
    assert not ShippedFiles()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (ShippedFile("../a", 1, [DIGEST]), "is no name for a shipped file"),
        (ShippedFile("", 1, [DIGEST]), "is no name for a shipped file"),
        (ShippedFile("a" * 256, 1, [DIGEST]), "is no name for a shipped file"),
        (ShippedFile("a", 1, []), "0 parts do not make 1 bytes"),
        (ShippedFile("a", PART_BYTES, [DIGEST, DIGEST]), "2 parts do not make"),
        (ShippedFile("a", -1, []), "0 parts do not make -1 bytes"),
        (ShippedFile("a", 1, [b"short"]), "1 parts do not make 1 bytes"),
        (
            ShippedFile("a", MAX_JOB_FILE_BYTES + 1, [DIGEST] * (MAX_JOB_FILE_BYTES // PART_BYTES + 1)),
            "the limit is 2147483648",
        ),
    ],
)
def test_files_of_another_form_are_refused(file: ShippedFile, words: str) -> None:
    with pytest.raises(JobGraphError, match=words):
        check_shipped_files(ShippedFiles(python_files=[file]))


def test_targets_that_lead_out_and_too_many_files_are_refused() -> None:
    file = ShippedFile("a.zip", 1, [DIGEST])

    with pytest.raises(JobGraphError, match=r"'\.\./a' is no name"):
        check_shipped_files(ShippedFiles(archives=[ShippedArchive(file, "../a")]))
    with pytest.raises(JobGraphError, match="ships 1001 files, the limit is 1000"):
        check_shipped_files(ShippedFiles(python_files=[file] * 1001))
