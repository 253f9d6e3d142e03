"""``PythonDependencies``: the methods of ``StreamExecutionEnvironment`` that ship files with a job.

Side:   pure.  Paths are read when a job starts.
Rules:  the options ``python.*`` and ``pipeline.cached-files`` are the only state.
Source: PyFlink ``pyflink.datastream.stream_execution_environment``.
"""

from flowlet.common.configuration import Configuration
from flowlet.common.options import python_options


class PythonDependencies:
    """A base class of ``StreamExecutionEnvironment`` alone.  Every method raises ConfigError: an argument is wrong."""

    _configuration: Configuration

    def add_python_file(self, file_path: str) -> None:
        """Ship a module, a zip archive or wheel of modules, or a folder of modules, which every task can import.

        Modules that lie beside the program, and that it has imported, are shipped anyway.
        """
        python_options.add_python_file(self._configuration, file_path)

    def set_python_requirements(self, requirements_file_path: str, requirements_cache_dir: str | None = None) -> None:
        """Install with pip, on every TaskManager, what a requirements file names.

        Args:
            requirements_file_path: in pip's format.
            requirements_cache_dir: a folder of packages, as ``pip download -d`` makes it, which is shipped and has all
                that is needed; left out, pip asks its index.
        """
        python_options.set_requirements(self._configuration, requirements_file_path, requirements_cache_dir)

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """Unpack a zip or tar archive, or a folder, on every TaskManager; functions find it below their working
        directory.

        Args:
            archive_path: on this machine.
            target_dir: its folder there; left out, it is called as the archive, with the ending of its name.
        """
        python_options.add_archive(self._configuration, archive_path, target_dir)

    def set_python_executable(self, python_exec: str) -> None:
        """Run the TaskManagers that this program starts with another interpreter, which has flowlet, and the same
        version of Python.

        A job for a cluster that runs already is refused with it: there the interpreter is chosen where TaskManagers are
        started.
        """
        python_options.set_executable(self._configuration, python_exec)

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> None:  # noqa: FBT001, FBT002  # PyFlink's
        """Ship a file or folder that functions find by ``name``; ``executable``: it is a program."""
        python_options.add_cached_file(self._configuration, file_path, name, is_executable=executable)
