"""Arguments and options that several commands share, so that they read the same everywhere."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _

__all__ = [
    "BackendChoice", "BackendOption", "ContextOption", "FileOption", "JobArgument", "NamespaceOption", "OutputFormat", "OutputOption", "PriceOption", "PricesOption", "SetOption",
    "SpecArgument", "ToOption", "TrainedStage", "YesOption", "complete_job", "complete_preset", "complete_spec",
    "refuse_cluster_options", "set_flags",
]


class OutputFormat(StrEnum):
    """Forms in which a command shows its result."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class BackendChoice(StrEnum):
    """Where a job runs."""

    LOCAL = "local"
    VOLCANO = "volcano"


def complete_job(incomplete: str) -> list[str]:
    """Names of jobs that begin so, for the shell."""
    from nanochat_npu.locate import job_names

    return job_names(incomplete)


def set_flags(overrides: Sequence[str] | None) -> list[str]:
    """The ``--set`` words that repeat these overrides: a command named next without them is about another spec."""
    return [part for override in overrides or () for part in ("--set", override)]


def refuse_cluster_options(job: str, given: Mapping[str, bool]) -> None:
    """Say that options mean nothing here, instead of dropping them without a word.

    Args:
        job: Name of a job on this computer.
        given: Option -> whether the person gave it.

    Raises:
        UsageError: One was.
    """
    for option, is_given in given.items():
        if is_given:
            raise UsageError(_("{job} is on this computer, and this option is about clusters").format(job=job), where=option, hint=_("leave {option} out").format(option=option))


def complete_preset(incomplete: str) -> list[str]:
    """Names of presets that begin like this."""
    from nanochat_npu.presets import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


def complete_spec(incomplete: str) -> list[str]:
    """Presets and YAML files (and folders to descend into) that begin like this."""
    head, _slash, tail = incomplete.rpartition("/")
    folder = Path(head or ("/" if incomplete.startswith("/") else "."))
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        entries = []
    prefix = f"{head}/" if incomplete.rpartition("/")[1] else ""
    files = [prefix + path.name + ("/" if path.is_dir() else "") for path in entries if path.name.startswith(tail) and (tail or not path.name.startswith(".")) and (path.is_dir() or path.suffix in (".yaml", ".yml"))]
    return [*complete_preset(incomplete), *files]


class TrainedStage(StrEnum):
    """Stages that leave a model."""

    PRETRAIN = "pretrain"
    SFT = "sft"
    RL = "rl"


PriceOption = Annotated[str | None, typer.Option("--price", metavar="3.0CNY", help=_("Price of an NPU-hour."), show_default=False)]
PricesOption = Annotated[
    str | None, typer.Option("--prices", metavar="FILE", help=_("A table of prices by NPU type; 'public' for offers that were seen."), show_default=False)
]
SpecArgument = Annotated[
    str, typer.Argument(metavar="SPEC", help=_("A spec file, the name of a preset, or - for stdin."), show_default=False, autocompletion=complete_spec)
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help=_("Name of a job."), show_default=False, autocompletion=complete_job)]
BackendOption = Annotated[
    BackendChoice | None, typer.Option("--backend", help=_("Where the job is; default: found by its name."), show_default=False)
]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help=_("Namespace on the cluster."), show_default=False)]
ContextOption = Annotated[str | None, typer.Option("--context", help=_("kubeconfig context."), show_default=False)]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=_("Override a field, for example run.model.depth=12."), show_default=False)
]
OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help=_("Form of the result."))]
ToOption = Annotated[Path | None, typer.Option("--to", metavar="PATH", help=_("Write files to this folder or file."), show_default=False)]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help=_("Do not ask."))]
FileOption = ToOption
