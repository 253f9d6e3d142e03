"""Apache Flink on this machine: a JobManager, two TaskManagers with one slot each, and a client that runs jobs on them.

Side:   any.
Needs:  ``.venv-flink`` (``make .venv-flink/installed``), whose package ``apache-flink`` has Flink's jars, and a JDK
        (17) for ``javac``.
Flink:  its own defaults (32 KiB buffers, 2 exclusive and 8 floating ones), a TaskManager process of 1,728 MiB as in its
        own configuration file, object reuse on.  Our classes are on the class path of the cluster, so that what the JIT
        learnt in one job holds for the next.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.cluster import Process, ProcessError

ROOT: Final = Path(__file__).resolve().parent.parent.parent
VENV: Final = ROOT / ".venv-flink"
SOURCES: Final = Path(__file__).parent / "flink"
NUM_TASK_MANAGERS: Final = 2
_START_TIMEOUT_S: Final = 120.0
_JOB_TIMEOUT_S: Final = 600.0
_OPENED: Final = (
    "lang",
    "net",
    "io",
    "nio",
    "lang.reflect",
    "text",
    "time",
    "util",
    "util.concurrent",
    "util.concurrent.atomic",
)
_ENTRY_POINTS: Final = {
    "JM": "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
    "TM": "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
}
_CONFIG: Final = """\
jobmanager.rpc.address: 127.0.0.1
jobmanager.rpc.port: {rpc_port}
jobmanager.bind-host: 127.0.0.1
jobmanager.memory.process.size: 1200m
taskmanager.host: 127.0.0.1
taskmanager.bind-host: 127.0.0.1
taskmanager.numberOfTaskSlots: 1
taskmanager.memory.process.size: 1728m
rest.address: 127.0.0.1
rest.bind-address: 127.0.0.1
rest.port: {rest_port}
web.submit.enable: false
classloader.resolve-order: parent-first
execution.runtime-mode: STREAMING
restart-strategy.type: disable
python.executable: {python}
python.client.executable: {python}
"""
_LOGGING: Final = """\
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = File
appender.file.name = File
appender.file.type = File
appender.file.fileName = ${sys:log.file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %-5p %c{1} - %m%n
"""


class FlinkError(Exception):
    """Flink failed; the message says where its logs are."""


def why_missing() -> str | None:
    """Return what is not installed; None if Flink can run."""
    if not _home().is_dir():
        return "Apache Flink is not installed: make .venv-flink/installed"
    if shutil.which("javac") is None:
        return "there is no javac: install a JDK (17)"
    return None


def _home() -> Path:
    return next(iter(VENV.glob("lib/python3*/site-packages/pyflink")), VENV / "missing")


def _jars() -> list[Path]:
    jars = [*_home().glob("lib/flink-*.jar"), *_home().glob("lib/log4j-*.jar"), *_home().glob("opt/flink-python-*.jar")]
    return sorted(jar for jar in jars if "log4j-1.2" not in jar.name)


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Return the versions of Flink and Java."""
    flink = next(
        (re.sub(r"flink-dist-(.*)\.jar", r"\1", jar.name) for jar in _jars() if jar.name.startswith("flink-dist-")),
        "unknown",
    )
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "([^"]+)"', java)
    return {"apache-flink": flink, "java": found.group(1) if found else "unknown"}


def free_port() -> int:
    """Return a port that is free just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class FlinkCluster:
    """Runs jobs of ``Driver.java``, one after the other.

    Threading: one thread.  Life cycle: a context manager; inside, all slots are there.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.folder = Path()
        self.rest_port = free_port()
        self._rpc_port = free_port()

    def __repr__(self) -> str:
        return f"<FlinkCluster at port {self.rest_port}, logs in {self.folder}>"

    def __enter__(self) -> Self:
        try:
            self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="flowlet-bench-flink-")))
            self._configure()
            self._compile()
            self._start("JM", "jm")
            for number in range(NUM_TASK_MANAGERS):
                self._start("TM", f"tm{number}", "-D", f"taskmanager.resource-id=tm{number}")
            self._wait_for_slots()
            self._driver = self._start_driver()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def class_path(self) -> str:
        """The path of our classes and Flink's."""
        return os.pathsep.join(map(str, [self.jar, *_jars()]))

    @property
    def jar(self) -> Path:
        """The JAR with our classes."""
        return self.folder / "bench.jar"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables by which Flink's programs find their files."""
        home = _home()
        return {
            "FLINK_CONF_DIR": str(self.folder),
            "FLINK_HOME": str(home),
            "FLINK_LIB_DIR": str(home / "lib"),
            "FLINK_OPT_DIR": str(home / "opt"),
            "FLINK_PLUGINS_DIR": str(self.folder / "plugins"),
            "FLINK_LOG_DIR": str(self.folder),
            "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def run(self, work: str, options: Mapping[str, object]) -> None:
        """Run one job to its end.

        Raises:
            FlinkError: it failed.
        """
        words = [work, *(f"{name}={value}" for name, value in options.items())]
        self._driver.send_line(" ".join(words))
        answer = self._driver.wait_for_line(r"^(DONE|FAILED.*)$", _JOB_TIMEOUT_S).group(1)
        if answer != "DONE":
            raise FlinkError(f"{work}: {answer}\n{self._driver.stderr[-4000:]}")

    # ---------------------------------------------------------------- start

    def _configure(self) -> None:
        config = _CONFIG.format(rpc_port=self._rpc_port, rest_port=self.rest_port, python=VENV / "bin" / "python")
        (self.folder / "config.yaml").write_text(config, encoding="ascii")
        (self.folder / "log4j.properties").write_text(_LOGGING, encoding="ascii")
        (self.folder / "plugins").mkdir()

    def _compile(self) -> None:
        classes = self.folder / "classes"
        sources = sorted(map(str, SOURCES.glob("*.java")))
        class_path = os.pathsep.join(map(str, _jars()))
        _call(["javac", "-nowarn", "-Xlint:-options", "-cp", class_path, "-d", str(classes), *sources])
        _call(["jar", "cf", str(self.jar), "-C", str(classes), "."])

    def _start(self, kind: str, name: str, *arguments: str) -> None:
        java_options, flink_options = self._memory_options(kind)
        self._java(
            name,
            [*java_options, *self.opens()],
            [_ENTRY_POINTS[kind], "--configDir", str(self.folder), *flink_options, *arguments],
        )

    def _start_driver(self) -> Process:
        driver = self._java(
            "driver", ["-Xmx512m", "-XX:TieredStopAtLevel=1", *self.opens()], ["Driver", str(self.rest_port)]
        )
        driver.wait_for_line("^READY$", _START_TIMEOUT_S)
        return driver

    def _java(self, name: str, options: Sequence[str], program: Sequence[str]) -> Process:
        logging = [
            f"-Dlog.file={self.folder / name}.flink.log",
            f"-Dlog4j.configurationFile=file:{self.folder / 'log4j.properties'}",
        ]
        command = ["java", *options, *logging, "-cp", self.class_path, *program]
        process = Process(command, log=self.folder / f"{name}.log", environment=self.environment, stdin=subprocess.PIPE)
        return self._stack.enter_context(process)

    def _memory_options(self, kind: str) -> tuple[list[str], list[str]]:
        """Return the JVM's and Flink's own options, as Flink's start scripts find them out."""
        tools = _home() / "bin" / "bash-java-utils.jar"
        command = [
            "java",
            "-cp",
            f"{tools}{os.pathsep}{self.class_path}",
            "org.apache.flink.runtime.util.bash.BashJavaUtils",
        ]
        output = _call([*command, f"GET_{kind}_RESOURCE_PARAMS", "--configDir", str(self.folder)])
        java_options, flink_options = re.findall(r"^BASH_JAVA_UTILS_EXEC_RESULT:(.*)$", output, re.MULTILINE)
        return java_options.split(), flink_options.split()

    @staticmethod
    def opens() -> list[str]:
        """Return the options that open Java's own packages to Flink."""
        packages = [*(f"java.{name}" for name in _OPENED), "java.util.concurrent.locks", "sun.nio.ch"]
        return [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in packages]

    def _wait_for_slots(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._num_free_slots() < NUM_TASK_MANAGERS:
            if time.monotonic() > deadline:
                raise FlinkError(f"Flink did not come up within {_START_TIMEOUT_S:g} s")
            time.sleep(0.25)

    def _num_free_slots(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest_port}/overview", timeout=5) as answer:
                return int(json.load(answer)["slots-available"])
        except (OSError, urllib.error.URLError):
            return 0


def _call(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProcessError(
            f"{command[0]} ... {command[-1]} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    return done.stdout
