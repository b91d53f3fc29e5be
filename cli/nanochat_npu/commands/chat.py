"""``chat``: talk to a trained model."""

from typing import Annotated

import typer

from nanochat_npu.backends.local import connect
from nanochat_npu.errors import UsageError
from nanochat_npu.foreground import require_model, run_trainer
from nanochat_npu.i18n import _
from nanochat_npu.jobs import Store
from nanochat_npu.locate import Where, cluster_job_of
from nanochat_npu.options import ContextOption, JobArgument, NamespaceOption, TrainedStage, refuse_cluster_options

__all__ = ["command"]

StageOption = Annotated[TrainedStage | None, typer.Option("--stage", help=_("Stage whose model answers; default: the last trained."), show_default=False)]
NpusOption = Annotated[int | None, typer.Option("--npus", min=0, help=_("On a cluster: NPUs of the server; default: 1."), show_default=False)]
PromptOption = Annotated[str | None, typer.Option("--prompt", "-p", help=_("Answer this and leave."), show_default=False)]


def command(
    job: JobArgument, stage: StageOption = None, prompt: PromptOption = None, npus: NpusOption = None, namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Talk to a trained model in the terminal; for a job on a cluster, to a server there."""
    if prompt is not None and not prompt.strip():
        raise UsageError(_("the question is empty"), where="--prompt", hint=_("leave --prompt out to talk in the terminal"))
    elsewhere = cluster_job_of(job, Where(None, namespace, context))
    if elsewhere is not None:
        from nanochat_npu.commands.serve_cluster import Server, chat_on_cluster

        chat_on_cluster(elsewhere, job, Server(1 if npus is None else npus, stage=stage.value if stage else ""), prompt)
        return
    folder = Store.default().existing(job)
    refuse_cluster_options(job, {"--npus": npus is not None})
    require_model(folder, stage and stage.value)
    backend = connect()
    backend.require_trainer()
    arguments = ["--job-dir", str(folder.path), *(["--stage", stage.value] if stage else []), *(["--prompt", prompt] if prompt is not None else [])]
    raise typer.Exit(run_trainer(backend, "chat", arguments, job))
