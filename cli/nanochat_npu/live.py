"""The live picture of a job for a person who watches: stages, progress, curves, workers, last events. Built with rich."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanochat_npu import curves, units
from nanochat_npu.backends import JobState
from nanochat_npu.i18n import _
from nanochat_npu.progress import StageRun
from nanochat_npu.tables import pad
from nanochat_npu.views import Snapshot

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

__all__ = ["STATE_STYLES", "View", "picture"]

STATE_STYLES: dict[JobState, str] = {
    JobState.PENDING: "yellow", JobState.RUNNING: "cyan", JobState.RESTARTING: "yellow", JobState.SUSPENDED: "yellow", JobState.SUCCEEDED: "green",
    JobState.FAILED: "bold red", JobState.CANCELLED: "magenta", JobState.UNKNOWN: "red",
}
LABEL_WIDTH = 10


@dataclass(frozen=True)
class View:
    """How a picture is drawn.

    Attributes:
        width: Columns of the terminal.
        curve_rows: Lines of each curve; 0 draws sparklines.
        events: How many of the last events to show.
        note: A line for the person at the end ("stopping …").
        rows: Further labelled values (cost so far).
    """

    width: int
    curve_rows: int = 0
    events: int = 4
    note: str = ""
    rows: Sequence[tuple[str, str]] = ()


def picture(snapshot: Snapshot, view: View) -> "RenderableType":
    """The job as it is now."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_title(snapshot), _stages(snapshot)]
    run = snapshot.progress.stepping
    if run is not None:
        parts += _training(snapshot, run, view)
    parts += _workers(snapshot)
    parts += [Text(f"{pad(label, LABEL_WIDTH)}  {value}", no_wrap=True, overflow="ellipsis") for label, value in view.rows]
    for moment, text in list(snapshot.progress.recent)[-view.events :] if view.events else []:
        parts.append(Text.assemble((time.strftime("%H:%M:%S ", time.localtime(moment)), "dim"), text, no_wrap=True, overflow="ellipsis"))
    if view.note:
        parts.append(Text(view.note, style="bold yellow"))
    return Group(*parts)


def _title(snapshot: Snapshot) -> "Text":
    from rich.text import Text

    job = snapshot.job
    title = Text.assemble((job.name, "bold"), "  ", (str(job.state), STATE_STYLES[job.state]))
    if job.attempt:
        title.append("  " + _("attempt {number}").format(number=job.attempt))
    if snapshot.elapsed_s is not None:
        title.append("  " + units.duration(snapshot.elapsed_s), style="dim")
    if job.reason:
        title.append("  " + job.reason, style="dim")
    return title


def _stages(snapshot: Snapshot) -> "Text":
    """✔ done, ▸ running, · still to come."""
    from rich.text import Text

    progress = snapshot.progress
    line = Text(no_wrap=True, overflow="ellipsis")
    by_index = {run.index: run for run in progress.runs}
    names = [str(name) for name in snapshot.job.extra.get("stages") or []] or [run.name for run in progress.runs]
    for index, name in enumerate(names):
        run = by_index.get(index)
        if run is None:
            line.append(f"· {name}   ", style="dim")
        elif run.status in ("end", "skip"):
            line.append("✔ ", style="green").append(f"{name}", style="green")
            line.append(f" {units.duration(run.took_s)}   " if run.took_s is not None else "   ", style="dim")
        else:
            line.append(f"▸ {name}   ", style="bold cyan")
    return line


def _training(snapshot: Snapshot, run: StageRun, view: View) -> "list[RenderableType]":
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=LABEL_WIDTH)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    room = max(10, view.width - LABEL_WIDTH - 34)
    if run.steps and run.step is not None:
        left = f"  {_('{time} left').format(time=units.duration(snapshot.progress.eta_s))}" if snapshot.progress.eta_s is not None else ""
        bar = Table.grid(padding=(0, 2))
        bar.add_row(ProgressBar(total=run.steps, completed=min(run.step, run.steps), width=room), f"{run.step:,} / {run.steps:,}{left}")
        grid.add_row(_("step"), bar)
    xs, losses, speeds = ([point[i] for point in run.curve] for i in range(3))
    values = ((_("loss"), losses, f"{run.loss:.4f}" if run.loss is not None else "-"),
              (_("tokens/s"), speeds, units.count(run.tokens_per_s) if run.tokens_per_s is not None else "-"))
    if not view.curve_rows:
        for label, ys, text in values:
            grid.add_row(label, Text.assemble((f"{text:<12}", "bold"), (curves.sparkline(ys, room), "cyan")))
        return [grid]
    parts: list[RenderableType] = [grid]
    for label, ys, text in values:
        parts.append(Text.assemble((f"{label}  ", ""), (text, "bold")))
        lines = curves.chart(xs, ys, width=view.width - 1, height=view.curve_rows, x_end=run.steps)
        parts += [Text(line, style="cyan", no_wrap=True) for line in lines]
    return parts


def _workers(snapshot: Snapshot) -> "list[RenderableType]":
    """Workers, where there are several; more than six are counted by state."""
    from rich.text import Text

    views = snapshot.job.workers
    if len(views) < 2:
        return []
    if len(views) > 6:
        tally: dict[str, int] = {}
        for view in views:
            tally[view.state] = tally.get(view.state, 0) + 1
        text = "  ".join(f"{count} {state}" for state, count in sorted(tally.items()))
    else:
        text = "  ".join(f"{view.name} {view.state}" + (f" ({view.exit_code})" if view.exit_code else "") for view in views)
    return [Text.assemble((pad(_("workers"), LABEL_WIDTH) + "  ", ""), (text, "dim"), no_wrap=True, overflow="ellipsis")]
