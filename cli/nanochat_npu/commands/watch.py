"""``watch``: a live view of a job; looking never changes it."""

from typing import Annotated

import typer

from nanochat_npu import console, tables
from nanochat_npu.backends import ENDED
from nanochat_npu.follow import Options, follow, make_display, raise_for_end
from nanochat_npu.i18n import _
from nanochat_npu.locate import Where, job_backend
from nanochat_npu.options import BackendOption, ContextOption, JobArgument, NamespaceOption
from nanochat_npu.periods import parse_seconds
from nanochat_npu.views import RESULT_SECTIONS, sections

__all__ = ["command"]

CURVE_ROWS = 8
"""Lines of a curve where the terminal is high enough."""
WaitOption = Annotated[str | None, typer.Option("--wait-timeout", metavar="TIME", help=_("Watch for at most 90s, 10m, 2h."), show_default=False)]


def command(
    job: JobArgument, wait_timeout: WaitOption = None, backend: BackendOption = None, namespace: NamespaceOption = None, context: ContextOption = None,
) -> None:
    """Watch a job: loss and throughput curves, stages, time left, workers, last events. Ctrl-C stops watching, not the job."""
    timeout_s = parse_seconds(wait_timeout, "--wait-timeout")
    at = job_backend(job, Where(backend.value if backend else None, namespace, context))
    at.get(job)  # an unknown name is an error before a picture is drawn
    snapshot = follow(at, job, make_display(curve_rows=CURVE_ROWS), Options(timeout_s=timeout_s)).snapshot
    if snapshot.job.state not in ENDED:
        raise typer.Exit(130)
    console.data(tables.to_text(sections(RESULT_SECTIONS, snapshot)))
    raise_for_end(snapshot)
