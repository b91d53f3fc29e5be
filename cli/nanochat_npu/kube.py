"""The Kubernetes API as we use it: plain objects in, plain objects out, every failure one of our errors.

The only importer of the official client, and lazily: it takes 0.6 s to load. From the client we take what is easy to get
wrong (kubeconfig, exec plugins, certificates, proxies, TLS); requests themselves are sent through its connection pool, because
its models do not know Volcano's objects and its retries do not know which of our requests are safe to repeat.

What is repeated, within `Kube.patience_s`: everything after 429 or an answer that says "later" (the server did nothing);
reads and deletes after a broken connection. A create whose answer was lost raises `LostResponseError`: its caller reads
back (a deterministic name and a submission id tell whose object it is).
"""

import json
import logging
import os
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from nanochat_npu import __version__, partial
from nanochat_npu.errors import ClusterUnreachable, NanochatNpuError
from nanochat_npu.i18n import _
from nanochat_npu.kube_errors import (
    BusyError,
    Call,
    ExpiredError,
    NotFoundError,
    Reply,
    UnauthorizedError,
    error_of,
    lost_response,
)
from nanochat_npu.kube_stream import Channel, LogOptions, Stream, transport_errors
from nanochat_npu.kubeconfig import Target
from nanochat_npu.resources import PODS, Resource

__all__ = ["MERGE_PATCH", "Clock", "Kube", "LogOptions", "Login", "Stream", "Target", "connect"]

list_ = list  # `Kube.list` hides the name inside of its class
MERGE_PATCH = "application/merge-patch+json"
_PAGE = 500
"""Objects of one page of a list: the server's own default for kubectl."""
_CONNECT_S, _READ_S = 10.0, 35.0
"""Seconds to connect, and to wait for the first byte (admission webhooks may take 10 s each)."""


class Clock:
    """Time, so that tests need not wait."""

    def now(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


@dataclass(frozen=True)
class Login:
    """A connection pool with its address and whoever we are for the server."""

    pool: Any
    server: str
    configuration: Any

    def headers(self) -> dict[str, str]:
        """Headers that say who we are; asks the exec plugin again where its token has expired."""
        found = {"User-Agent": f"nanochat-npu/{__version__}", "Accept": "application/json"}
        for setting in self.configuration.auth_settings().values():
            if setting["in"] == "header" and setting["value"]:
                found[setting["key"]] = setting["value"]
        return found


def log_in(target: Target) -> Login:
    """Load certificates and tokens and prepare a connection pool; no request is sent.

    Raises:
        ClusterUnreachable: The kubeconfig does not work, or its exec plugin failed (with what it said on stderr).
    """
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    configuration = client.Configuration()
    configuration.retries = False
    # Following the logs of many workers opens as many connections; urllib3 warns about each that it does not keep.
    configuration.connection_pool_maxsize = 64
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    complaints = _Complaints()
    try:
        with complaints:
            if target.files:
                config.load_kube_config(
                    config_file=os.pathsep.join(target.files), context=target.context, client_configuration=configuration, persist_config=False
                )
            else:
                config.load_incluster_config(client_configuration=configuration)
        api = client.ApiClient(configuration)
    except (ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterUnreachable(
            _("kubeconfig does not work: {error}").format(error=" ".join(str(error).split())), where=os.pathsep.join(target.files) or None,
            hint=_("try the same with: kubectl get namespaces"),
        ) from error
    if complaints.texts:
        # The client logs what an exec plugin said and goes on without credentials; the 401 that follows would hide it.
        raise ClusterUnreachable(
            _("no credentials: {error}").format(error="; ".join(complaints.texts)), where=os.pathsep.join(target.files) or None,
            hint=_("run the plugin of your kubeconfig by hand, or log in again"),
        )
    return Login(api.rest_client.pool_manager, str(configuration.host).rstrip("/"), configuration)


class _Complaints(logging.Handler):
    """Catches what the client's configuration code logs as an error instead of raising it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(" ".join(record.getMessage().split()))

    def __enter__(self) -> "_Complaints":
        root = logging.getLogger()
        self._others, root.handlers = root.handlers, [self]
        return self

    def __exit__(self, *exc: object) -> None:
        logging.getLogger().handlers = self._others


def connect(*, context: str | None = None, clock: Clock | None = None) -> "Kube":
    """A client for the cluster that kubectl would talk to; nothing is sent yet."""
    return Kube(Target.choose(context=context), clock=clock or Clock())


@dataclass(frozen=True)
class Page:
    """One list: its objects, and the version to watch from."""

    objects: list[dict[str, Any]]
    version: str


@dataclass
class Kube:
    """A client for one cluster. Safe to use from several threads.

    Attributes:
        target: Which cluster.
        clock: For waiting.
        patience_s: How long one call may go on trying, all in all.
        warnings: Texts of the server's ``Warning`` headers, each once.
        requests: How many requests were sent, by verb; for measuring.
    """

    target: Target
    clock: Clock = field(default_factory=Clock)
    patience_s: float = 60.0
    warnings: list[str] = field(default_factory=list)
    requests: dict[str, int] = field(default_factory=dict)
    _login: Login | None = None
    _lock: Any = field(default_factory=threading.Lock)

    # ---- calls -----------------------------------------------------------------------------------------------------

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        """One object.

        Raises:
            NotFoundError: There is none.
        """
        return self._json(self._call("get", resource, namespace, name), "GET", resource.path(namespace, name))

    def find(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object, or None."""
        try:
            return self.get(resource, name, namespace)
        except NotFoundError:
            return None

    def list(self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = "", cached: bool = False) -> Page:
        """All objects that match, over as many pages as it takes. They carry no ``kind`` of their own, as in any list.

        With `cached` the server answers from memory in one page, as of some seconds ago at worst: for looking, not for deciding.
        """
        call = self._call("list", resource, namespace)
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": "" if cached else str(_PAGE), "continue": "", "resourceVersion": "0" if cached else ""}
        objects: list[dict[str, Any]] = []
        while True:
            try:
                answer = self._json(call, "GET", resource.path(namespace), query)
            except ExpiredError:
                if not query["continue"]:
                    raise
                objects, query["continue"] = [], ""  # the snapshot behind the page mark is gone: begin again
                continue
            objects += partial.items(answer, "items")
            query["continue"] = partial.text(answer, "metadata", "continue")
            if not query["continue"]:
                return Page(objects, partial.text(answer, "metadata", "resourceVersion"))

    def create(self, resource: Resource, obj: dict[str, Any], namespace: str | None = None, *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object, refusing unknown fields; with `dry_run` the server only says what it would do.

        Raises:
            ConflictError: The name is taken.
            LostResponseError: The answer was lost; the object may be there.
        """
        name = partial.text(obj, "metadata", "name") or None
        query = {"fieldValidation": "Strict", "fieldManager": "nanochat-npu", "dryRun": "All" if dry_run else ""}
        return self._json(self._call("create", resource, namespace, name), "POST", resource.path(namespace), query, obj)

    def patch(self, resource: Resource, name: str, change: dict[str, Any], namespace: str | None = None, sub: str | None = None) -> dict[str, Any]:
        """Merge this into an object (JSON merge patch): repeating it does no harm."""
        query = {"fieldManager": "nanochat-npu", "fieldValidation": "Strict"}
        return self._json(self._call("patch", resource, namespace, name), "PATCH", resource.path(namespace, name, sub), query, change)

    def delete(
        self, resource: Resource, name: str, namespace: str | None = None, *, uid: str | None = None, foreground: bool = False, grace_s: int | None = None
    ) -> bool:
        """Delete an object; False if there was none (any more). With `uid`, only that very object."""
        body: dict[str, Any] = {"propagationPolicy": "Foreground" if foreground else "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            self._json(self._call("delete", resource, namespace, name), "DELETE", resource.path(namespace, name), None, body)
        except NotFoundError:
            return False
        return True

    def raw(self, path: str) -> Any:
        """Whatever JSON the server has at a path (``/version``, ``/openapi/v3/…``)."""
        return self._json(Call("get", Resource("", "v1", path, path, namespaced=False), None, None, self.server), "GET", path)

    def post(self, resource: Resource, namespace: str, name: str, sub: str, obj: dict[str, Any]) -> dict[str, Any]:
        """Post to a subresource."""
        return self._json(self._call("create", resource, namespace, name), "POST", resource.path(namespace, name, sub), None, obj)

    # ---- streams ---------------------------------------------------------------------------------------------------

    def watch(self, resource: Resource, namespace: str | None, *, version: str, labels: str = "", fields: str = "", timeout_s: int = 300) -> "Stream":
        """Changes after `version`, one JSON object ``{"type", "object"}`` a line, until the server ends the stream.

        Raises:
            ExpiredError: That version is too old; list again.
        """
        query = {
            "watch": "true", "resourceVersion": version, "labelSelector": labels, "fieldSelector": fields,
            "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_s),
        }
        # Bookmarks come about once a minute; a connection that is silent for longer than that may be dead without telling.
        return Stream(self._open(self._call("watch", resource, namespace), "GET", resource.path(namespace), query, read_s=150.0))

    def log(self, namespace: str, pod: str, query: "LogOptions") -> "Stream":
        """A container's output, line by line.

        Raises:
            NotFoundError: The pod is gone.
            ClusterRejected: Its container has not started yet.
        """
        call = self._call("get", Resource("", "v1", "pods/log", "Pod"), namespace, pod)
        read_s = None if query.follow else _READ_S
        return Stream(self._open(call, "GET", PODS.path(namespace, pod, "log"), query.as_query(), read_s=read_s))

    def exec_socket(self, namespace: str, pod: str, command: "list_[str]", *, stdin: bool) -> Channel:
        """An open websocket to a new process in a pod; its messages are those of ``exec`` (see `nanochat_npu.cluster.exec`).

        Raises:
            ClusterError: The pod, or the right to run commands in it, is missing.
        """
        options = [("stdin", str(stdin).lower()), ("stdout", "true"), ("stderr", "true"), *(("command", word) for word in command)]
        return self._websocket(PODS.path(namespace, pod, "exec"), options, Call("create", Resource("", "v1", "pods/exec", "Pod"), namespace, pod, self.server))

    def forward_socket(self, namespace: str, pod: str, port: int) -> Channel:
        """An open websocket that carries one connection to a port of a pod."""
        call = Call("create", Resource("", "v1", "pods/portforward", "Pod"), namespace, pod, self.server)
        return self._websocket(PODS.path(namespace, pod, "portforward"), [("ports", str(port))], call)

    def _websocket(self, path: str, options: "list_[tuple[str, str]]", call: Call) -> Channel:
        import websocket
        from kubernetes.stream.ws_client import create_websocket

        login = self._logged_in()
        url = login.server.replace("http", "ws", 1) + path + "?" + urlencode(options)
        found = {key.lower(): value for key, value in self._headers(login).items()}
        try:
            opened = create_websocket(login.configuration, url, {"authorization": found["authorization"]} if "authorization" in found else {})
        except websocket.WebSocketBadStatusException as error:
            raise error_of(call, Reply(error.status_code, error.resp_body or b"")) from error
        except (websocket.WebSocketException, OSError) as error:
            raise _unreachable(call, error, sent=False) from error
        return Channel(opened, call)

    # ---- how -------------------------------------------------------------------------------------------------------

    @property
    def server(self) -> str:
        """Address of the API server; logs in if that has not been done."""
        return self._logged_in().server

    def _call(self, verb: str, resource: Resource, namespace: str | None, name: str | None = None) -> Call:
        return Call(verb, resource, namespace, name, self.server)

    def _logged_in(self, *, anew: bool = False) -> Login:
        with self._lock:
            if self._login is None or anew:
                self._login = log_in(self.target)
            return self._login

    def _json(self, call: Call, method: str, path: str, query: dict[str, str] | None = None, body: Any = None) -> dict[str, Any]:
        response = self._open(call, method, path, query or {}, body=body)
        try:
            raw = response.read()
        except transport_errors() as error:
            raise lost_response(call, error) from error
        finally:
            response.release_conn()
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise error_of(call, Reply(response.status, raw[:4000], response.headers.get("Content-Type", ""))) from None
        return answer

    def _open(self, call: Call, method: str, path: str, query: dict[str, str], *, body: Any = None, read_s: float | None = _READ_S) -> Any:
        """Send until there is an answer below 400, or patience is at its end."""
        deadline, tried, renewed = self.clock.now() + self.patience_s, 0, False
        repeatable = method in ("GET", "DELETE", "PATCH")
        while True:
            tried += 1
            try:
                return self._once(call, method, path, query, body, read_s)
            except UnauthorizedError:
                if renewed:
                    raise
                renewed = True  # a token that expired under a job of hours: ask the plugin, or read the token file, once more
                self._logged_in(anew=True)
                continue
            except BusyError as error:
                wait = error.after_s if error.after_s is not None else _backoff_s(tried)
                last: NanochatNpuError = error
            except ClusterUnreachable as error:
                if not repeatable or not _may_heal(error):
                    raise
                wait, last = _backoff_s(tried), error
            if self.clock.now() + wait > deadline:
                raise last
            self.clock.sleep(wait)

    def _once(self, call: Call, method: str, path: str, query: dict[str, str], body: Any, read_s: float | None) -> Any:
        import urllib3

        login = self._logged_in()
        url = login.server + path
        if asked := {key: value for key, value in query.items() if value}:
            url += "?" + urlencode(asked)
        headers = self._headers(login)
        data = None
        if body is not None:
            data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
            headers["Content-Type"] = MERGE_PATCH if method == "PATCH" else "application/json"
        with self._lock:
            self.requests[call.verb] = self.requests.get(call.verb, 0) + 1
        try:
            response = login.pool.request(
                method, url, body=data, headers=headers, preload_content=False, retries=False, redirect=False,
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=read_s),
            )
        except transport_errors() as error:
            raise _unreachable(call, error, sent=_was_sent(error)) from error
        self._keep_warnings(response)
        if response.status >= 300:
            try:
                raw = response.read()
            except transport_errors() as error:
                raise _unreachable(call, error, sent=True) from error
            finally:
                response.release_conn()
            raise error_of(call, Reply(response.status, raw, response.headers.get("Content-Type", ""), response.headers.get("Retry-After")))
        return response

    def _headers(self, login: Login) -> dict[str, str]:
        complaints = _Complaints()
        with self._lock, complaints:
            headers = login.headers()
        if complaints.texts:
            raise ClusterUnreachable(_("no credentials: {error}").format(error="; ".join(complaints.texts)), hint=_("log in again"))
        return headers

    def _keep_warnings(self, response: Any) -> None:
        for value in response.headers.getlist("Warning") if hasattr(response.headers, "getlist") else []:
            text = value.partition('"')[2].rpartition('"')[0].replace('\\"', '"') or value
            with self._lock:
                if text not in self.warnings:
                    self.warnings.append(text)


def _backoff_s(tried: int) -> float:
    """0.5 s, doubling up to 15 s, with a third of it by chance so that many clients do not come back together."""
    whole: float = min(15.0, 0.5 * 2.0 ** min(tried - 1, 6))
    return whole * (1 - random.random() / 3)


def _was_sent(error: Exception) -> bool:
    """False if the request cannot have reached the server: no connection was made."""
    import urllib3.exceptions as u

    return not isinstance(error, (u.NewConnectionError, u.ConnectTimeoutError, u.SSLError, u.ProxyError, u.NameResolutionError, u.LocationValueError))


def _may_heal(error: ClusterUnreachable) -> bool:
    """False for what the next attempt would meet again: a wrong certificate, a name that does not exist, a stranger's answer."""
    cause = error.__cause__
    import urllib3.exceptions as u

    if cause is None:
        return False
    return not isinstance(cause, (u.SSLError, u.NameResolutionError, u.LocationValueError))


def _unreachable(call: Call, error: Exception, *, sent: bool) -> ClusterUnreachable:
    import urllib3.exceptions as u

    if sent:
        return lost_response(call, error)
    if isinstance(error, u.SSLError):
        hint = _("the certificate of {server} is not trusted; look at certificate-authority in the kubeconfig").format(server=call.server)
    elif isinstance(error, u.ProxyError):
        hint = _("a proxy is set (HTTPS_PROXY); add the server's address to NO_PROXY if it is reached directly")
    else:
        hint = _("is the cluster up, and are you in its network? Try: kubectl version")
    return ClusterUnreachable(_("no connection to {server}: {error}").format(server=call.server, error=_reason(error)), where=call.where, hint=hint)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text.rpartition(": ")[2] if ": " in text else text or type(error).__name__
