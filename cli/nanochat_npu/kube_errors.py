"""What an API server answers when it does not do what was asked, told in our words: verb, resource, namespace, user, way out.

Pure: a reply goes in, an exception comes out. The classes here are those that callers tell apart; each is also one of the
errors that a person may see, so that one that nobody catches still reads well.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from nanochat_npu import partial
from nanochat_npu.errors import (
    ClusterError,
    ClusterForbidden,
    ClusterRejected,
    ClusterUnreachable,
    NanochatNpuError,
    PrerequisiteMissing,
)
from nanochat_npu.i18n import _
from nanochat_npu.resources import Resource

__all__ = ["BusyError", "Call", "ConflictError", "ExpiredError", "LostResponseError", "NotFoundError", "Reply", "UnauthorizedError", "error_of", "lost_response", "retry_after_s"]


class NotFoundError(ClusterError):
    """The object does not exist (its kind and its namespace do)."""

    kind = "not_found"


class ConflictError(ClusterError):
    """An object of that name exists already, or it changed under us."""

    kind = "conflict"

    def __init__(self, message: str, *, being_deleted: bool, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, where=where, hint=hint)
        self.being_deleted = being_deleted
        """The old object is still going away: waiting helps."""


class ExpiredError(ClusterError):
    """410: a watch or a list must start anew."""

    kind = "expired"


class UnauthorizedError(ClusterForbidden):
    """401: the server does not know who we are."""

    kind = "unauthorized"


class BusyError(ClusterUnreachable):
    """The server was busy; `after_s` is how long it asks to be left alone. It did nothing, so asking again is safe."""

    kind = "busy"

    def __init__(self, message: str, *, after_s: float | None, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, where=where, hint=hint)
        self.after_s = after_s


class LostResponseError(ClusterUnreachable):
    """The connection broke after the request was sent: it may or may not have been carried out."""

    kind = "lost_response"


@dataclass(frozen=True)
class Call:
    """A request, as a person should read it in an error.

    Attributes:
        verb: As in RBAC: get, list, watch, create, patch, delete.
        resource: Kind of object.
        namespace: None for objects of the whole cluster.
        name: None for collections.
        server: Address of the API server.
    """

    verb: str
    resource: Resource
    namespace: str | None
    name: str | None
    server: str

    @property
    def where(self) -> str:
        """``create jobs.batch.volcano.sh train/d20``."""
        target = "/".join(part for part in (self.namespace if self.resource.namespaced else None, self.name) if part)
        return f"{self.verb} {self.resource.full_name}" + (f" {target}" if target else "")


@dataclass(frozen=True)
class Reply:
    """An answer with a status of 400 or more, or one that is not JSON."""

    code: int
    body: bytes
    content_type: str = "application/json"
    retry_after: str | None = None

    @property
    def status(self) -> dict[str, Any]:
        """The ``Status`` object in the body, {} where there is none."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def message(self) -> str:
        """The server's sentence."""
        return partial.text(self.status, "message")


_USER = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)"')


def error_of(call: Call, reply: Reply) -> NanochatNpuError:
    """The error for a reply; total over all codes and bodies."""
    if partial.text(reply.status, "kind") != "Status":
        return _not_kubernetes(call, reply)
    make = {
        401: _unauthorized, 403: _forbidden, 404: _missing, 409: _conflict, 410: _expired, 429: _busy,
        413: _too_large, 500: _server_trouble, 502: _busy, 503: _busy, 504: _busy,
    }.get(reply.code, _rejected)
    return make(call, reply)


def retry_after_s(reply: Reply) -> float | None:
    """Seconds that the server asks us to wait: header Retry-After, or ``details.retryAfterSeconds``; None if it says nothing."""
    value = (reply.retry_after or "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    seconds = partial.integer(reply.status, "details", "retryAfterSeconds")
    return float(seconds) if seconds else None


def lost_response(call: Call, error: BaseException) -> LostResponseError:
    """The error for a request whose answer never came."""
    return LostResponseError(
        _("the connection to {server} broke before the answer came: {error}").format(server=call.server, error=_short(str(error))), where=call.where,
        hint=_("whether it was carried out is not known; ask again with: nanochat-npu list"),
    )


def _short(text: str, limit: int = 400) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _not_kubernetes(call: Call, reply: Reply) -> NanochatNpuError:
    """An answer that no API server gives: a path it does not serve (plain text), or somebody else's page in between."""
    if reply.code == 404 and reply.body.strip() == b"404 page not found":
        return _missing_group(call)
    if reply.code == 429 or reply.code in (502, 503, 504):
        return _busy(call, reply)
    what = _short(re.sub(rb"<[^>]*>", b" ", reply.body[:2000]).decode("utf-8", "replace"), 160) or _("an empty body")
    return ClusterUnreachable(
        _("{server} does not answer like a Kubernetes API server (HTTP {code}, {type}): {what}").format(
            server=call.server, code=reply.code, type=reply.content_type or "?", what=what
        ),
        where=call.where,
        hint=_("is a proxy in between? Add the server's address to NO_PROXY, or look at the address with: kubectl config view --minify"),
    )


def _unauthorized(call: Call, reply: Reply) -> UnauthorizedError:
    return UnauthorizedError(
        _("the server does not accept these credentials (401)"), where=call.where,
        hint=_("log in again, or look at what is in use with: kubectl config view --minify"),
    )


def _forbidden(call: Call, reply: Reply) -> NanochatNpuError:
    found = _USER.search(reply.message)
    if found is None:
        # Quotas, pod security and a namespace that is going away also answer 403: there the rights are in order.
        return ClusterRejected(_short(reply.message) or _("refused without a reason (403)"), where=call.where, hint=_hint_for_refusal(reply.message))
    user, verb, resource = found["user"], found["verb"], found["resource"]
    return ClusterForbidden(
        _('user "{user}" may not {verb} {resource} in {scope}').format(
            user=user, verb=verb, resource=call.resource.full_name if resource == call.resource.plural else resource,
            scope=_('namespace "{namespace}"').format(namespace=call.namespace) if call.resource.namespaced and call.namespace else _("the cluster"),
        ),
        where=call.where,
        hint=_("ask an administrator for the tenant role of k8s/rbac.yaml in that namespace, or choose another one: --namespace"),
    )


def _hint_for_refusal(message: str) -> str | None:
    if "exceeded quota" in message:
        return _("see what the namespace may use with: kubectl describe resourcequota")
    if "is being terminated" in message:
        return _("the namespace is being deleted; choose another one: --namespace")
    return None


def _missing(call: Call, reply: Reply) -> NanochatNpuError:
    kind, name = partial.text(reply.status, "details", "kind"), partial.text(reply.status, "details", "name")
    if kind == "namespaces" and call.resource.kind != "Namespace":
        return PrerequisiteMissing(
            _('namespace "{name}" does not exist').format(name=name), where=call.where, hint=_("see which there are with: kubectl get namespaces")
        )
    if call.name is None and not name:
        return _missing_group(call)
    return NotFoundError(_("{kind} {name} does not exist").format(kind=call.resource.kind, name=call.name or name), where=call.where)


def _missing_group(call: Call) -> PrerequisiteMissing:
    if call.resource.group.endswith("volcano.sh"):
        return PrerequisiteMissing(
            _("Volcano is not installed on this cluster: it knows no {resource}").format(resource=call.resource.full_name), where=call.where,
            hint=_("an administrator installs it once; see k8s/README.md"),
        )
    return PrerequisiteMissing(_("this server knows no {resource}").format(resource=call.resource.full_name), where=call.where)


def _conflict(call: Call, reply: Reply) -> ConflictError:
    return ConflictError(_short(reply.message), being_deleted="object is being deleted" in reply.message, where=call.where)


def _expired(call: Call, reply: Reply) -> ExpiredError:
    return ExpiredError(_("the server no longer has the version to go on from"), where=call.where)


def _busy(call: Call, reply: Reply) -> NanochatNpuError:
    # "Too large resource version" (504) is a watch cache that is behind: a new list helps, waiting does not.
    if reply.code == 504 and "resource version" in reply.message.lower():
        return _expired(call, reply)
    return BusyError(
        _("{server} is busy (HTTP {code}): {text}").format(server=call.server, code=reply.code, text=_short(reply.message) or "-"),
        after_s=retry_after_s(reply), where=call.where,
    )


def _too_large(call: Call, reply: Reply) -> ClusterRejected:
    return ClusterRejected(
        _("the object is too large for the server: {text}").format(text=_short(reply.message)), where=call.where,
        hint=_("objects end at 1.5 MB, ConfigMaps at 1 MiB"),
    )


def _server_trouble(call: Call, reply: Reply) -> NanochatNpuError:
    message = reply.message
    if "failed calling webhook" in message or "failed to call webhook" in message:
        return ClusterUnreachable(
            _("an admission webhook of the cluster does not answer: {text}").format(text=_short(message)), where=call.where,
            hint=_("look at Volcano's admission service with: kubectl -n volcano-system get pods"),
        )
    if "request is too large" in message:
        return _too_large(call, reply)
    after = retry_after_s(reply)
    if after is not None:
        return BusyError(_short(message), after_s=after, where=call.where)
    return ClusterError(_("the server had an internal error: {text}").format(text=_short(message)), where=call.where)


def _rejected(call: Call, reply: Reply) -> NanochatNpuError:
    if "request is too large" in reply.message:
        return _too_large(call, reply)
    return ClusterRejected(
        _short(reply.message, 1500) or _("refused without a reason (HTTP {code})").format(code=reply.code), where=call.where,
    )
