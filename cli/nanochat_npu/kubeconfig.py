"""Which cluster, which context, which namespace: kubeconfig files read the way kubectl reads them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanochat_npu import partial
from nanochat_npu.errors import ClusterUnreachable
from nanochat_npu.i18n import _

__all__ = ["Target"]

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Target:
    """Which cluster: kubeconfig files and context as kubectl would choose them, or the pod that we are in.

    Attributes:
        files: Existing, non-empty kubeconfig files in the order of KUBECONFIG; empty inside of a pod.
        context: Context to use; None inside of a pod.
        namespace: The context's namespace, else ``default``.
    """

    files: tuple[str, ...]
    context: str | None
    namespace: str

    @classmethod
    def choose(cls, *, context: str | None = None, environ: Mapping[str, str] | None = None) -> "Target":
        """The target that kubectl would talk to with this environment.

        Raises:
            ClusterUnreachable: No kubeconfig, not a kubeconfig, or no such context; the hint lists what there is.
        """
        env = os.environ if environ is None else environ
        raw = env.get("KUBECONFIG", "")
        named = [name for name in raw.split(os.pathsep) if name] or [str(Path(home) / ".kube" / "config") for home in [env.get("HOME")] if home]
        files = {str(path): _read_kubeconfig(path) for path in map(Path, named) if path.is_file() and path.stat().st_size}
        if not files:
            if env.get("KUBERNETES_SERVICE_HOST"):
                inside = _SERVICE_ACCOUNT.read_text().strip() if _SERVICE_ACCOUNT.exists() else "default"
                return cls((), None, inside)
            raise ClusterUnreachable(
                _("no kubeconfig: {paths} does not exist or is empty").format(paths=os.pathsep.join(named) or "~/.kube/config"),
                hint=_("set KUBECONFIG, or train on this computer: --set backend=local"),
            )
        contexts: dict[str, dict[str, Any]] = {}
        for content in files.values():
            for entry in partial.items(content, "contexts"):
                contexts.setdefault(partial.text(entry, "name"), partial.mapping(entry, "context"))
        # kubectl: the first file that names a current context wins (the Python client takes the last).
        chosen = context or next((name for content in files.values() if (name := partial.text(content, "current-context"))), "")
        if not chosen or chosen not in contexts:
            known = ", ".join(sorted(name for name in contexts if name)) or "-"
            raise ClusterUnreachable(
                _('no context "{name}" in {files}').format(name=chosen, files=os.pathsep.join(files)) if chosen
                else _("no current context in {files}").format(files=os.pathsep.join(files)),
                hint=_("choose one of: {known} (--context NAME)").format(known=known),
            )
        return cls(tuple(files), chosen, partial.text(contexts[chosen], "namespace") or "default")


def _read_kubeconfig(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ClusterUnreachable(_("kubeconfig {path} cannot be read: {error}").format(path=path, error=" ".join(str(error).split()))) from error
    if content is not None and not isinstance(content, dict):
        raise ClusterUnreachable(_("{path} is not a kubeconfig").format(path=path))
    return content or {}
