"""A registry's HTTP API (OCI distribution spec 1.1), as far as finding, copying and pushing images needs it. Standard library only."""

import base64
import hashlib
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanochat_npu import __version__
from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _
from nanochat_npu.image.credentials import basic_credentials
from nanochat_npu.image.reference import Reference

__all__ = ["INDEX_TYPES", "MANIFEST_TYPES", "Manifest", "Registry", "sha256_of"]

MANIFEST_TYPES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
INDEX_TYPES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
TIMEOUT_S = 60.0
TRIES = 3
CHUNK_BYTES = 1 << 20
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})


def sha256_of(content: bytes) -> str:
    """Digest of some bytes, as registries write it."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """A manifest or index: its exact bytes are what the digest is of."""

    content: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """Digest of the bytes."""
        return sha256_of(self.content)

    def parsed(self) -> dict[str, Any]:
        """The JSON in it; an empty object if it is none."""
        try:
            value = json.loads(self.content)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


class _NoForwardedLogin(urllib.request.HTTPRedirectHandler):
    """Blobs are often redirected to an object store, which must not get the registry's login (and would refuse it)."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            new.remove_header("Authorization")
        return new


class Registry:
    """One repository of one registry.

    Args:
        reference: Any image in it.
        plain_http: True if the registry has no TLS; never guessed.
        environ: Where logins are looked for; default: the process's environment.
    """

    def __init__(self, reference: Reference, *, plain_http: bool = False, environ: Mapping[str, str] | None = None) -> None:
        self.reference = reference
        self._base = f"{'http' if plain_http else 'https'}://{reference.registry}/v2/{reference.repository}"
        self._environ = environ
        self._authorization: str | None = None
        self._opener = urllib.request.build_opener(_NoForwardedLogin)

    def head(self, version: str) -> str | None:
        """Digest of the manifest with this tag or digest, or None if there is none."""
        response = self._ask("HEAD", f"/manifests/{version}", headers={"Accept": ", ".join(MANIFEST_TYPES + INDEX_TYPES)}, missing_ok=True)
        if response is None:
            return None
        with response:
            digest = response.headers.get("Docker-Content-Digest")
        if digest:
            return str(digest)
        found = self.manifest(version)
        return found.digest if found else None

    def manifest(self, version: str) -> Manifest | None:
        """The manifest or index with this tag or digest, or None if there is none.

        Raises:
            ImageError: Its bytes do not have the digest that was asked for.
        """
        response = self._ask("GET", f"/manifests/{version}", headers={"Accept": ", ".join(MANIFEST_TYPES + INDEX_TYPES)}, missing_ok=True)
        if response is None:
            return None
        with response:
            found = Manifest(response.read(), (response.headers.get("Content-Type") or MANIFEST_TYPES[0]).split(";")[0])
        if version.startswith("sha256:") and found.digest != version:
            raise ImageError(_("the registry sent another manifest than it was asked for"), where=f"{self.reference.name}@{version}")
        return found

    def blob(self, digest: str) -> bytes:
        """A small blob (a config), checked against its digest."""
        content = b"".join(self.blob_chunks(digest))
        if sha256_of(content) != digest:
            raise ImageError(_("a blob arrived damaged"), where=f"{self.reference.name}@{digest}")
        return content

    def blob_chunks(self, digest: str) -> Iterator[bytes]:
        """The bytes of a blob, piece by piece; whoever writes them checks the digest."""
        response = self._ask("GET", f"/blobs/{digest}")
        if response is None:
            raise ImageError(_("the registry does not have this blob"), where=f"{self.reference.name}@{digest}")
        with response:
            while chunk := self._read(response):
                yield chunk

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read(CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def has_blob(self, digest: str) -> bool:
        """True if the repository has this blob."""
        response = self._ask("HEAD", f"/blobs/{digest}", missing_ok=True)
        if response is None:
            return False
        response.close()
        return True

    def mount(self, digest: str, repository: str) -> bool:
        """Take a blob over from another repository of the same registry; False if it does not allow that."""
        query = urllib.parse.urlencode({"mount": digest, "from": repository})
        response = self._ask("POST", f"/blobs/uploads/?{query}", body=b"")
        if response is None:
            return False
        with response:
            if response.status == http.HTTPStatus.CREATED:
                return True
            location = response.headers.get("Location")
        if location:
            self._ask("DELETE", self._absolute(location), missing_ok=True)
        return False

    def upload(self, digest: str, source: bytes | Path) -> None:
        """Put a blob into the repository; a blob that is there already is not sent again."""
        if self.has_blob(digest):
            return
        response = self._ask("POST", "/blobs/uploads/", body=b"")
        location = response.headers.get("Location") if response else None
        if response is None or not location:
            raise ImageError(_("the registry takes no uploads"), where=self.reference.name)
        response.close()
        target = self._absolute(location)
        joiner = "&" if urllib.parse.urlsplit(target).query else "?"
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        answer = self._ask("PUT", f"{target}{joiner}digest={digest}", body=source, headers=headers)
        if answer is not None:
            answer.close()

    def put_manifest(self, manifest: Manifest, version: str) -> str:
        """Put a manifest under a tag and return its digest. Last of all: until then the tag is what it was."""
        answer = self._ask("PUT", f"/manifests/{version}", body=manifest.content, headers={"Content-Type": manifest.media_type})
        if answer is not None:
            answer.close()
        return manifest.digest

    def _absolute(self, location: str) -> str:
        return urllib.parse.urljoin(self._base + "/", location)

    def _ask(
        self, method: str, path: str, *, body: bytes | Path | None = None, headers: Mapping[str, str] | None = None, missing_ok: bool = False
    ) -> http.client.HTTPResponse | None:
        """One answer of the registry; None for "not there" where that is allowed. Errors that may pass are tried again."""
        url = path if "://" in path else self._base + path
        asked_login, failures = False, 0
        while True:
            try:
                return self._send(method, url, body, headers or {})
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == http.HTTPStatus.NOT_FOUND and missing_ok:
                        return None
                    if error.code == http.HTTPStatus.UNAUTHORIZED and not asked_login:
                        asked_login = True
                        self._authorization = self._log_in(error.headers.get("WWW-Authenticate") or "")
                        continue
                    failures += 1
                    if error.code not in _TRANSIENT or failures == TRIES:
                        raise self._refused(error, method) from error
            except (OSError, http.client.HTTPException) as error:
                failures += 1
                if failures == TRIES or isinstance(getattr(error, "reason", None), ssl.SSLError):
                    raise self._unreachable(error) from error
            time.sleep(0.3 * 2**failures)

    def _send(self, method: str, url: str, body: bytes | Path | None, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        sent = {"User-Agent": f"nanochat-npu/{__version__}", **headers}
        if self._authorization and urllib.parse.urlsplit(url).netloc == self.reference.registry:
            sent["Authorization"] = self._authorization
        # The body goes in with the headers: urllib drops Content-Length when it is set later.
        if isinstance(body, Path):
            with body.open("rb") as file:
                return self._open(urllib.request.Request(url, file, sent, method=method))  # noqa: S310 - http(s) only
        return self._open(urllib.request.Request(url, body, sent, method=method))  # noqa: S310 - http(s) only

    def _open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        response: http.client.HTTPResponse = self._opener.open(request, timeout=TIMEOUT_S)
        return response

    def _log_in(self, challenge: str) -> str | None:
        """An Authorization header for what the registry asked (RFC 7235; docker's token authentication)."""
        login = basic_credentials(self.reference.registry, self.reference.repository, self._environ)
        basic = "Basic " + base64.b64encode(":".join(login).encode()).decode() if login else None
        scheme, _space, rest = challenge.partition(" ")
        if scheme.lower() != "bearer":
            return basic
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        query = {key: wanted[key] for key in ("service", "scope") if key in wanted}
        url = f"{wanted.get('realm', '')}?{urllib.parse.urlencode(query)}"
        if not url.startswith(("http://", "https://")):
            return basic
        request = urllib.request.Request(url, headers={"Authorization": basic} if basic else {})  # noqa: S310 - checked above
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                answer = json.loads(response.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ImageError(_("the registry's login service refuses: {reason}").format(reason=error), where=self.reference.registry, hint=self._login_hint()) from error
        return f"Bearer {answer.get('token') or answer.get('access_token') or ''}"

    def _login_hint(self) -> str:
        return _("log in with your builder, for example: docker login {registry}").format(registry=self.reference.registry)

    def _refused(self, error: urllib.error.HTTPError, method: str) -> ImageError:
        what = _error_text(error)
        if error.code in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
            right = _("reading from") if method in ("GET", "HEAD") else _("pushing to")
            return ImageError(_("the registry does not allow {right} {name}: {what}").format(right=right, name=self.reference.name, what=what),
                              where=self.reference.registry, hint=self._login_hint())
        return ImageError(_("the registry answers {code}: {what}").format(code=error.code, what=what), where=self.reference.name)

    def _unreachable(self, error: Exception) -> ImageError:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, ssl.SSLError):
            return ImageError(
                _("the registry's certificate is not accepted, or it does not speak TLS: {reason}").format(reason=getattr(reason, "verify_message", "") or reason.reason or reason),
                where=self.reference.registry, hint=_("set SSL_CERT_FILE to the site's CA; a registry without TLS needs image.plain_http: true"),
            )
        return ImageError(_("the registry cannot be reached: {reason}").format(reason=reason), where=self.reference.registry, hint=_("check the name, the network and HTTPS_PROXY"))


def _error_text(error: urllib.error.HTTPError) -> str:
    try:
        found = json.loads(error.read(65_536))["errors"][0]
        return f"{found.get('code', '')} {found.get('message', '')}".strip()
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OSError):
        return str(error.reason)
