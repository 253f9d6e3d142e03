"""What a user reads when a store behind fsspec refuses a file of a checkpoint.

Side:  shared.
Rules: the clients of stores have exceptions of their own; they are told apart by the names of their classes, and by
       what fsspec's implementations make of the answers, so that no client needs to be installed.
"""

import errno
from typing import Final

from flowlet.errors import StorageError

_ELSEWHERE: Final = "or set execution.checkpointing.dir to another place"
# By scheme: the package with fsspec's implementation.
_PACKAGES: Final = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "oss": "ossfs",
    "hdfs": "pyarrow",
    "sftp": "paramiko",
    "ssh": "paramiko",
    "smb": "smbprotocol",
}
_NO_CREDENTIALS: Final = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
    "ClientAuthenticationError",
)
_NOT_REACHED: Final = (
    *(
        "EndpointConnectionError",
        "ConnectionClosedError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ClientConnectorError",
    ),
    *(
        "HTTPClientError",
        "ServiceRequestError",
        "FSTimeoutError",
        "ConnectionError",
        "ConnectionRefusedError",
        "TimeoutError",
    ),
)
_MAX_CAUSE_CHARS: Final = 300


def cannot_open(url: str, scheme: str, error: Exception) -> StorageError:
    """Why the client of a store could not be made."""
    if isinstance(error, ImportError):
        package = _PACKAGES.get(scheme)
        how = "install it for every process of the cluster"
        why = (
            f"{package} is not installed: {how} (pip install {package})"
            if package
            else f"its package is not installed: {how} ({error})"
        )
    elif isinstance(error, ValueError) and "not known" in str(error):
        why = f"fsspec knows no storage with the scheme {scheme!r}; {_ELSEWHERE.removeprefix('or ')}"
    else:
        why = f"{_described(error)}; mend that, {_ELSEWHERE}"
    return StorageError(f"checkpoints cannot be kept in {url!r}: {why}")


def object_failure(error: Exception, url: str, done: str) -> StorageError:
    """The error for a user.

    Args:
        error: from fsspec, or from the client below it.
        url: of the file.
        done: what could not be done with it: "written".
    """
    names = {kind.__name__ for each in (error, error.__cause__) if each is not None for kind in type(each).__mro__}
    if names.intersection(_NO_CREDENTIALS):
        cause = (
            "this process has no credentials for the store; put them into its environment or the configuration of "
            "the store's client"
        )
    elif "bucket does not exist" in str(error) or "NoSuchBucket" in str(error):
        cause = f"there is no such bucket; make it, {_ELSEWHERE}"
    elif isinstance(error, FileNotFoundError) and done == "read":
        return StorageError(f"checkpoint file {url} is missing: put the original back, or restore another checkpoint")
    elif isinstance(error, PermissionError):
        cause = f"the store gives these credentials no permission ({_described(error)}); give it to them, {_ELSEWHERE}"
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        cause = f"the store is full; free space there, {_ELSEWHERE}"
    elif names.intersection(_NOT_REACHED):
        cause = f"the store does not answer ({_described(error)}); is it up, and can this machine reach it?"
    else:
        cause = f"{_described(error)}; mend that, {_ELSEWHERE}"
    return StorageError(f"checkpoint file {url} cannot be {done}: {cause}")


def _described(error: Exception) -> str:
    """The kind of an error and its text."""
    return f"{type(error).__name__}: {error}"[:_MAX_CAUSE_CHARS]
