"""``flowlet state``: what a savepoint or checkpoint holds.

Side:   shared.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flowlet.cli.quick_commands import print_table
from flowlet.errors import FlowletError

if TYPE_CHECKING:
    import pyarrow as pa

    from flowlet.state_reader import SavedState

_FORMATS: Final = ("table", "csv", "json", "arrow")
_MAX_ROWS: Final = 1000


def show_state(
    path: Annotated[str, typer.Argument(help="The directory of the savepoint or checkpoint, or its URL.")],
    operator: Annotated[str | None, typer.Option(help="The uid, id or name of an operator.")] = None,
    state: Annotated[str | None, typer.Option(help="The name of one of its states, or 'timers'.")] = None,
    output_format: Annotated[
        str, typer.Option("--format", help="table, csv, json (a line per entry) or arrow (needs --output).")
    ] = "table",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file instead of the terminal.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Rows of a table that are shown.")] = _MAX_ROWS,
    secret_file: Annotated[
        Path | None, typer.Option(help="Default: $FLOWLET_SECRET_FILE or ~/.flowlet/secret.")
    ] = None,
) -> None:
    """Show the operators and states of a savepoint or checkpoint, or the entries of one state."""
    if output_format not in _FORMATS:
        raise FlowletError(f"--format is {output_format!r}, it must be one of {', '.join(_FORMATS)}")
    if (operator is None) != (state is None):
        raise FlowletError("--operator and --state go together")
    if operator is None and (output is not None or output_format != "table"):
        raise FlowletError(
            "--format and --output are for the entries of one state: name it with --operator and --state"
        )
    if output_format == "arrow" and output is None:
        raise FlowletError("--format arrow needs a file: --output FILE")
    sys.path.insert(0, os.getcwd())  # the classes of values are often beside the program
    from flowlet.state_reader import read_state  # and with it pyarrow, which the other commands do without

    found = read_state(path, secret_file=secret_file)
    if operator is None or state is None:
        _show_operators(found)
    else:
        _show_entries(found.table(operator, state), output_format, output, limit)


def _show_operators(found: "SavedState") -> None:
    kind = "savepoint" if found.is_savepoint else "checkpoint"
    typer.echo(f"{kind} {found.checkpoint_id} of job {found.job_name}  {found.job_id}")
    rows: list[tuple[str, ...]] = []
    for each in found.operators():
        head = (
            each.uid or each.operator_id,
            each.name,
            f"{each.parallelism}/{each.max_parallelism}",
            f"{each.num_bytes:,}",
        )
        states = [(state.name, state.kind, state.type_name, f"{state.num_entries:,}") for state in each.states]
        if each.num_timers:
            states.append(("timers", "timers", "", f"{each.num_timers:,}"))
        for index, state in enumerate(states or [("", "", "", "")]):
            rows.append((*(head if index == 0 else ("",) * len(head)), *state))
    print_table(("uid", "operator", "parallelism", "bytes", "state", "kind", "type", "entries"), rows)


def _show_entries(table: "pa.Table", output_format: str, output: Path | None, limit: int) -> None:
    import pyarrow as pa

    if output_format == "arrow":
        with pa.OSFile(str(output), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return
    if output_format == "table" and output is None:
        shown = table.slice(0, limit)
        print_table(table.column_names, [tuple(map(_text, row.values())) for row in shown.to_pylist()])
        if table.num_rows > limit:
            typer.echo(f"({table.num_rows - limit:,} more rows; --limit shows more, --format csv all)")
        return
    text = _as_csv(table) if output_format in ("csv", "table") else _as_json(table)
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _as_csv(table: "pa.Table") -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(table.column_names)
    for row in table.to_pylist():
        writer.writerow([_text(each) for each in row.values()])
    return text.getvalue()


def _as_json(table: "pa.Table") -> str:
    import json

    return "".join(f"{json.dumps(row, default=str)}\n" for row in table.to_pylist())
