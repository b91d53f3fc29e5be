"""``doctor``: is everything there that jobs need?"""

from typing import Annotated

import typer

from nanochat_npu import console
from nanochat_npu.doctor import Check, Level, check_cluster, check_computer, worst
from nanochat_npu.errors import ClusterError
from nanochat_npu.i18n import _
from nanochat_npu.load import load_spec
from nanochat_npu.locate import cluster_is_configured
from nanochat_npu.options import ContextOption, NamespaceOption, OutputFormat, OutputOption, SetOption, set_flags
from nanochat_npu.spec import JobSpec
from nanochat_npu.tables import cells, pad

__all__ = ["command"]

OptionalSpec = Annotated[str | None, typer.Argument(metavar="[SPEC]", help=_("A spec file or a preset: what it names is checked too."), show_default=False)]
LocalOption = Annotated[bool, typer.Option("--local", help=_("Leave the cluster out."))]

_SIGNS = {Level.OK: "✓", Level.SKIPPED: "-", Level.WARNING: "!", Level.FAILED: "✗"}


def command(
    spec: OptionalSpec = None, set_: SetOption = None, local: LocalOption = False, namespace: NamespaceOption = None, context: ContextOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Check this computer, the cluster, and what a spec names; say what is missing and who can mend it."""
    loaded = load_spec(spec, set_ or []).spec if spec else None
    checks = check_computer()
    if not local:
        checks += _cluster(loaded, namespace, context)
    verdict = worst(checks)
    if output is OutputFormat.JSON:
        console.json_data({"verdict": verdict.value, "checks": [check.as_json() for check in checks]})
    else:
        _show(checks, markdown=output is OutputFormat.MARKDOWN)
        console.say_next(*_next_command(verdict, spec, set_ or []))
    if verdict is Level.FAILED:
        raise typer.Exit(ClusterError.exit_code)


def _next_command(verdict: Level, spec: str | None, overrides: list[str]) -> list[str]:
    what = [*([spec] if spec else []), *set_flags(overrides)]
    return ["doctor", *what] if verdict is Level.FAILED else ["submit", *(what if spec else ["SPEC"])]


def _without_cluster(spec: JobSpec | None) -> list[Check]:
    """What it means for the spec that no cluster is configured."""
    if spec is None or spec.backend != "volcano":
        return []
    finding = _("{name} is for a cluster (backend: volcano), and none is configured: nothing that it names there was looked at").format(name=spec.name)
    return [Check("spec", _("spec"), Level.FAILED, finding, _("set KUBECONFIG, or run it here: --set backend=local"))]


def _cluster(spec: JobSpec | None, namespace: str | None, context: str | None) -> list[Check]:
    title = _("cluster")
    if not (context or cluster_is_configured()):
        return [Check("cluster", title, Level.SKIPPED, _("no kubeconfig: only backend local can be used"), _("set KUBECONFIG to use a cluster")), *_without_cluster(spec)]
    from nanochat_npu.backends.volcano import connect

    wanted = namespace or (spec.cluster.namespace if spec and spec.backend == "volcano" else None)
    try:
        backend = connect(namespace=wanted, context=context or (spec.cluster.context if spec else None))
        return check_cluster(backend.kube, backend.namespace, spec if spec and spec.backend == "volcano" else None)
    except ClusterError as error:
        return [Check("cluster", title, Level.FAILED, str(error), error.hint or "")]


def _show(checks: list[Check], *, markdown: bool) -> None:
    if markdown:
        console.data("| | check | finding | remedy |\n|---|---|---|---|")
        for check in checks:
            console.data(f"| {_SIGNS[check.level]} | {check.title} | {check.finding} | {check.remedy} |")
        return
    width = max(cells(check.title) for check in checks)
    for check in checks:
        console.data(f"{_SIGNS[check.level]} {pad(check.title, width)}  {check.finding}")
        if check.remedy and check.level is not Level.OK:
            console.data(f"  {' ' * width}  → {check.remedy}")
    counts = {level: sum(check.level is level for check in checks) for level in Level}
    console.say(_("{ok} in order, {warnings} warnings, {failed} failed, {skipped} not looked at").format(
        ok=counts[Level.OK], warnings=counts[Level.WARNING], failed=counts[Level.FAILED], skipped=counts[Level.SKIPPED]))
