"""Credentials of registries, from where the builders keep them: one login serves both. Nothing is stored by us."""

import base64
import binascii
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _

__all__ = ["basic_credentials"]


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where docker, podman, buildah, skopeo and nerdctl keep logins, in the order in which they look."""
    if environ.get("REGISTRY_AUTH_FILE"):
        yield Path(environ["REGISTRY_AUTH_FILE"])
    if environ.get("XDG_RUNTIME_DIR"):
        yield Path(environ["XDG_RUNTIME_DIR"]) / "containers" / "auth.json"
    home = Path(environ.get("HOME") or "/")
    yield home / ".config" / "containers" / "auth.json"
    yield Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"


def basic_credentials(registry: str, repository: str, environ: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """User and password for a registry, or None if nobody has logged in.

    Raises:
        ImageError: A file of logins cannot be understood, or its credential helper fails.
    """
    for path in _files(os.environ if environ is None else environ):
        config = _read(path)
        found = _from_config(config, registry, repository, path) if config else None
        if found:
            return found
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ImageError(_("the file of registry logins cannot be read: {reason}").format(reason=error), where=str(path)) from error
    return content if isinstance(content, dict) else {}


def _from_config(config: dict[str, Any], registry: str, repository: str, path: Path) -> tuple[str, str] | None:
    helpers, auths = config.get("credHelpers") or {}, config.get("auths") or {}
    if registry in helpers:
        return _ask_helper(str(helpers[registry]), registry)
    parts = f"{registry}/{repository}".split("/")
    # podman allows logins for a part of a registry; the longest wins.
    for key in (*("/".join(parts[:count]) for count in range(len(parts), 0, -1)), f"https://{registry}", f"https://{registry}/v1/", f"https://{registry}/v2/"):
        encoded = (auths.get(key) or {}).get("auth")
        if encoded:
            return _decode(str(encoded), path)
    if config.get("credsStore") and any(registry in key for key in auths):
        return _ask_helper(str(config["credsStore"]), registry)
    return None


def _decode(encoded: str, path: Path) -> tuple[str, str]:
    try:
        user, colon, password = base64.b64decode(encoded).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ImageError(_("a registry login is damaged"), where=str(path), hint=_("log in again with your builder")) from error
    if not colon:
        raise ImageError(_("a registry login is damaged"), where=str(path), hint=_("log in again with your builder"))
    return user, password


def _ask_helper(helper: str, registry: str) -> tuple[str, str] | None:
    try:
        answer = subprocess.run([f"docker-credential-{helper}", "get"], input=registry, capture_output=True, text=True, timeout=30, check=False)
        if answer.returncode != 0:
            return None
        found = json.loads(answer.stdout)
        return str(found["Username"]), str(found["Secret"])
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        raise ImageError(_("the credential helper does not answer: {reason}").format(reason=error), where=f"docker-credential-{helper}") from error
