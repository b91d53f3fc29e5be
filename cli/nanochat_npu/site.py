"""The site file: what an administrator says once about a cluster, and which lies under every spec."""

import os
from collections.abc import Mapping
from pathlib import Path

from nanochat_npu.errors import SpecSyntaxError
from nanochat_npu.i18n import _
from nanochat_npu.yaml_source import MAX_BYTES, YamlSource, parse_yaml

__all__ = ["SITE_VARIABLE", "SYSTEM_SITE_FILE", "read_site", "site_file"]

SITE_VARIABLE = "NANOCHAT_NPU_SITE"
SYSTEM_SITE_FILE = Path("/etc/nanochat-npu/site.yaml")
_NOT_FOR_A_SITE = ("name", "owner")


def site_file(environ: Mapping[str, str]) -> Path | None:
    """The site file in use: ``$NANOCHAT_NPU_SITE``, else the XDG configuration folder's, else /etc's; None without one.

    An empty ``NANOCHAT_NPU_SITE`` switches site files off.
    """
    if SITE_VARIABLE in environ:
        return Path(os.path.expanduser(environ[SITE_VARIABLE])) if environ[SITE_VARIABLE] else None  # noqa: PTH111  (of a person who does not exist it leaves the name)
    config = environ.get("XDG_CONFIG_HOME")
    personal = (Path(config) if config else Path(environ.get("HOME", "/")) / ".config") / "nanochat-npu" / "site.yaml"
    return next((path for path in (personal, SYSTEM_SITE_FILE) if os.path.isfile(path)), None)  # noqa: PTH113  (False where a parent is unreadable)


def read_site(environ: Mapping[str, str]) -> YamlSource | None:
    """The site file's data, or None without one.

    Raises:
        SpecSyntaxError: It is named but cannot be read, or is not a map, or names a job.
    """
    path = site_file(environ)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        message = _("cannot read the site file: {reason}").format(reason=error.strerror)
        raise SpecSyntaxError(message, where=str(path), hint=_("correct or unset {name}").format(name=SITE_VARIABLE)) from error
    source = parse_yaml(content, str(path), empty_hint=_("k8s/site.example.yaml shows what it may hold; or unset {name}").format(name=SITE_VARIABLE))
    problems = [
        source.problem(_("a site file speaks for all jobs; this belongs into a spec"), (key,), key=True) for key in _NOT_FOR_A_SITE if key in source.data
    ]
    if problems:
        raise SpecSyntaxError(problems[0].message, where=str(path), problems=problems)
    return source
