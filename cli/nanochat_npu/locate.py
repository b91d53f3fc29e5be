"""Finding the backend that has a job, from its name alone: our own receipts first, then the cluster."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nanochat_npu.backends import Backend, BackendName, connect
from nanochat_npu.errors import ClusterError, JobNotFound, NanochatNpuError
from nanochat_npu.jobs import Store, not_found
from nanochat_npu.kubeconfig import Target

__all__ = ["Where", "all_backends", "cluster_is_configured", "cluster_job_of", "job_backend", "job_names"]


UNASKED_S = 5.0
"""How long a cluster may take to answer where nobody said that the job is there."""

if TYPE_CHECKING:
    from nanochat_npu.backends.volcano import VolcanoBackend


@dataclass(frozen=True)
class Where:
    """What a person said about where a job is; None is left to us."""

    backend: BackendName | None = None
    namespace: str | None = None
    context: str | None = None

    @property
    def on_cluster(self) -> bool:
        """True if the person named something that only a cluster has."""
        return self.backend == "volcano" or bool(self.namespace or self.context)

    @property
    def words(self) -> list[str]:
        """The options that say it once more: a command named next without them would look for the job elsewhere."""
        return [*(["--namespace", self.namespace] if self.namespace else []), *(["--context", self.context] if self.context else [])]


def cluster_is_configured(environ: Mapping[str, str] | None = None) -> bool:
    """True if there is a cluster to ask: a kubeconfig, or the service account of a pod. Contacts nobody."""
    env = os.environ if environ is None else environ
    return bool(env.get("KUBECONFIG") or env.get("KUBERNETES_SERVICE_HOST")) or (Path.home() / ".kube" / "config").exists()


def job_backend(name: str, where: Where | None = None) -> Backend:
    """The backend that has this job.

    Raises:
        JobNotFound: No backend has it; the nearest name is in the hint.
        ClusterError: It is on a cluster that cannot be reached.
    """
    where, store = where or Where(), Store.default()
    if not where.on_cluster and name in store.names():
        receipt = store.folder(name).receipt()
        if where.backend is None and receipt.backend == "volcano":
            details = receipt.details
            return connect("volcano", namespace=_word(details.get("namespace")), context=_word(details.get("context")))
        return connect("local")
    if where.on_cluster:
        return connect("volcano", namespace=where.namespace, context=where.context)
    if where.backend is None and cluster_is_configured():
        return _on_cluster_or_nowhere(name, store)
    raise not_found(name, store.names())


def cluster_job_of(name: str, where: Where) -> "VolcanoBackend | None":
    """The backend of a job whose model is on a cluster; None for a job whose folder with checkpoints is on this computer.

    Raises:
        JobNotFound: Nobody has it.
    """
    from nanochat_npu.backends.volcano import VolcanoBackend

    folder = Store.default().folder(name)
    if not where.on_cluster and any((folder.path / "checkpoints").glob("*/step_*")):
        return None  # its own, or fetched from a cluster
    backend = job_backend(name, where)
    return backend if isinstance(backend, VolcanoBackend) else None


def _on_cluster_or_nowhere(name: str, store: Store) -> Backend:
    """A colleague's job may be on the cluster. That one is not reachable is no reason to hide that we do not know the name."""
    try:
        backend = connect("volcano", patience_s=UNASKED_S)
        backend.get(name)
    except JobNotFound:
        raise
    except ClusterError as error:
        missing = not_found(name, store.names())
        raise JobNotFound(f"{missing.message} ({error})", where=name, hint=missing.hint, details=missing.details) from error
    return backend


def all_backends(where: Where | None = None) -> tuple[list[Backend], list[NanochatNpuError]]:
    """The backends whose jobs `list` shows, and why others are left out."""
    where = where or Where()
    names: list[BackendName] = ["volcano"] if where.on_cluster else [where.backend] if where.backend else ["local"]
    if where.backend is None and not where.on_cluster and cluster_is_configured():
        names.append("volcano")
    found: list[Backend] = []
    failed: list[NanochatNpuError] = []
    for name in names:
        for place in _places(where) if name == "volcano" else [{}]:
            try:
                patience = {} if name == "local" or where.on_cluster else {"patience_s": UNASKED_S}
                found.append(connect(name, **place, **patience))
            except ClusterError as error:
                failed.append(error)
    return found, failed


def _places(where: Where) -> list[dict[str, str | None]]:
    """Contexts and namespaces to look into: the one that was said, or the current one and those of our own receipts."""
    places: list[dict[str, str | None]] = [{"namespace": where.namespace, "context": where.context}]
    if where.namespace or where.context:
        return places
    known: set[tuple[str | None, str | None]] = set()
    with contextlib.suppress(ClusterError):  # `connect` will say what is wrong
        current = Target.choose()
        known.add((current.context, current.namespace))
    store = Store.default()
    for name in store.names():
        receipt = store.folder(name).receipt()
        place = (_word(receipt.details.get("context")), _word(receipt.details.get("namespace")))
        if receipt.backend == "volcano" and place not in known:
            known.add(place)
            places.append({"context": place[0], "namespace": place[1]})
    return places


def job_names(prefix: str) -> list[str]:
    """Names of known jobs that begin so, for completion; asks no cluster, since completion must not wait."""
    try:
        return [name for name in Store.default().names() if name.startswith(prefix)]
    except ClusterError:
        return []


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
