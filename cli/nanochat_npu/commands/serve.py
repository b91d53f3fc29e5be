"""``serve``: a trained model over HTTP, for the page, the openai client and other programs."""

import os
from typing import Annotated

import typer

from nanochat_npu import console
from nanochat_npu.backends.local import connect
from nanochat_npu.errors import UsageError
from nanochat_npu.foreground import require_model, run_trainer
from nanochat_npu.i18n import _
from nanochat_npu.jobs import Store
from nanochat_npu.locate import Where, cluster_job_of
from nanochat_npu.options import ContextOption, JobArgument, NamespaceOption, TrainedStage, refuse_cluster_options
from nanochat_npu.periods import parse_seconds

__all__ = ["command"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN_VARIABLE = "NANOCHAT_SERVE_TOKEN"  # noqa: S105 - the name of a variable

StageOption = Annotated[TrainedStage | None, typer.Option("--stage", help=_("Stage whose model answers; default: the last trained."), show_default=False)]
HostOption = Annotated[str, typer.Option("--host", help=_("Address to listen on; anything but loopback needs a token in NANOCHAT_SERVE_TOKEN."))]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help=_("Port; 0 takes a free one."))]
SlotsOption = Annotated[int, typer.Option("--slots", min=1, help=_("Answers that are written at the same time."))]
IdleOption = Annotated[str, typer.Option("--idle-ttl", metavar="TIME", help=_("Leave after 90s, 30m, 2h without a request; 0: never."))]
NpusOption = Annotated[int | None, typer.Option("--npus", min=0, help=_("On a cluster: NPUs of the server; default: 1."), show_default=False)]
ForwardOption = Annotated[bool, typer.Option("--forward", help=_("On a cluster: make it a port of this computer until Ctrl-C."))]


def command(
    job: JobArgument, stage: StageOption = None, host: HostOption = LOOPBACK[0], port: PortOption = 8000, slots: SlotsOption = 16,
    idle_ttl: IdleOption = "0", npus: NpusOption = None, forward: ForwardOption = False, namespace: NamespaceOption = None, context: ContextOption = None,
) -> None:
    """Serve a trained model: a web page to talk to it, and OpenAI's protocol for programs."""
    idle_ttl_s = parse_seconds(idle_ttl, "--idle-ttl") or 0.0
    elsewhere = cluster_job_of(job, Where(None, namespace, context))
    if elsewhere is not None:
        from nanochat_npu.commands.serve_cluster import Server, serve_on_cluster

        if host != LOOPBACK[0]:
            raise UsageError(_("{job} is on a cluster: --forward makes its server a port of this computer, on loopback").format(job=job), where="--host")
        serve_on_cluster(elsewhere, job, Server(1 if npus is None else npus, idle_ttl_s or 1800.0, stage.value if stage else "", slots), local_port=port if forward else None)
        return
    folder = Store.default().existing(job)
    refuse_cluster_options(job, {"--npus": npus is not None, "--forward": forward})
    require_model(folder, stage and stage.value)
    if host not in LOOPBACK and not os.environ.get(TOKEN_VARIABLE):
        raise UsageError(
            _("{host} can be reached by others, and no token is set").format(host=host), where="--host",
            hint=_("set {variable}, or leave --host at 127.0.0.1").format(variable=TOKEN_VARIABLE),
        )
    backend = connect()
    backend.require_trainer()
    arguments = ["--job-dir", str(folder.path), "--host", host, "--port", str(port), "--slots", str(slots), "--idle-ttl-s", f"{idle_ttl_s:g}"]
    console.say(_("loading the model; Ctrl-C ends the server"))
    raise typer.Exit(run_trainer(backend, "serve", [*arguments, *(["--stage", stage.value] if stage else [])], job))
