"""Programs that build a Dockerfile: docker, buildah, podman, nerdctl. The only place that starts one.

Each is a table of command lines; what they have in common (finding, trying, running, showing progress, keeping the last lines
for the error) is written once. Logins are the builder's own.

Oldest versions: our Dockerfile has cache mounts, which came with Docker 20.10 (Dockerfile frontend 1.2; BuildKit has to be asked for
until 23.0), buildah 1.24 (containers/buildah#3574) and podman 4.0 (3.4 refuses them: containers/podman#12062).
"""

import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _
from nanochat_npu.image.context import BuildInput

__all__ = ["BUILDERS", "Builder", "find_builder", "host_architecture", "run_builder"]

LAST_LINES = 25
PROBE_S = 20.0
"""How long a builder may take to say its version, or whether its daemon is there."""
Show = Callable[[str], None]


@dataclass(frozen=True)
class Builder:
    """One builder's command lines; words in braces are filled in.

    Attributes:
        build: Builds the context in {context} as {ref}.
        insecure_build: Further options of build where the base comes by plain HTTP.
        push: Pushes {ref}; {digestfile} where it can write the digest.
        insecure_push: Further options of push by plain HTTP.
        oci: Writes {ref} as an OCI layout to {path}; empty if it cannot.
        oldest: Oldest version that builds our Dockerfile; empty: not known.
        probe: Command that fails where the builder is there and its daemon is not; empty: it has none.
        env: Variables that it needs.
    """

    name: str
    build: tuple[str, ...]
    push: tuple[str, ...]
    insecure_build: tuple[str, ...] = ()
    insecure_push: tuple[str, ...] = ()
    oci: tuple[str, ...] = ()
    oldest: tuple[int, ...] = ()
    probe: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


_COMMON = ("--platform", "{platform}", "-f", "{context}/Dockerfile", "-t", "{ref}")

BUILDERS: dict[str, Builder] = {
    builder.name: builder
    for builder in (
        Builder(
            "docker", ("docker", "build", "--progress", "plain", *_COMMON), ("docker", "push", "{ref}"),
            oci=("docker", "buildx", "build", *_COMMON, "--output", "type=oci,tar=false,dest={path}", "{context}"),
            oldest=(20, 10), env={"DOCKER_BUILDKIT": "1"}, probe=("docker", "version", "--format", "{{.Server.Version}}"),
        ),
        Builder(
            "buildah", ("buildah", "build", "--layers", "--force-rm", *_COMMON), ("buildah", "push", "--digestfile", "{digestfile}", "{ref}", "docker://{ref}"),
            insecure_build=("--tls-verify=false",), insecure_push=("--tls-verify=false",), oci=("buildah", "push", "{ref}", "oci:{path}:{tag}"), oldest=(1, 24),
        ),
        Builder(
            "podman", ("podman", "build", "--layers", "--force-rm", *_COMMON), ("podman", "push", "--digestfile", "{digestfile}", "{ref}", "docker://{ref}"),
            insecure_build=("--tls-verify=false",), insecure_push=("--tls-verify=false",), oci=("podman", "push", "{ref}", "oci:{path}:{tag}"), oldest=(4, 0),
        ),
        Builder(
            "nerdctl", ("nerdctl", "build", "--progress", "plain", *_COMMON), ("nerdctl", "push", "{ref}"), insecure_push=("--insecure-registry",),
            oci=("nerdctl", "build", *_COMMON, "--output", "type=oci,tar=false,dest={path}", "{context}"),
            probe=("nerdctl", "info"),
        ),
    )
}
"""Builders in the order in which they are looked for."""


def find_builder(wanted: str | None = None, show: Show = lambda line: None) -> Builder:
    """The builder of this name, or the first that is installed and can work; one that cannot is named and passed over.

    Args:
        wanted: Name; None looks for one.
        show: Gets a line for each that is passed over.

    Raises:
        ImageError: There is none, or the wanted one cannot work.
    """
    if wanted is not None and wanted not in BUILDERS:
        raise ImageError(_("there is no builder {name}").format(name=wanted), where="--builder", hint=_("choose {names} or layers").format(names=", ".join(BUILDERS)))
    problems = []
    for builder in [BUILDERS[wanted]] if wanted else BUILDERS.values():
        if not shutil.which(builder.name):
            continue
        problem = _problem(builder)
        if problem is None:
            return builder
        problems.append(f"{builder.name}: {problem}")
        if not wanted:
            show(_("{builder}; looking for another builder").format(builder=problems[-1]))
    if problems:
        raise ImageError("; ".join(problems), where="--builder", hint=_without())
    raise ImageError(
        _("{name} is not installed").format(name=wanted) if wanted else _("no builder is installed: {names}").format(names=", ".join(BUILDERS)), hint=_without(),
    )


def _without() -> str:
    return _("--builder layers needs none; --handoff PATH writes a folder for somebody who has one")


def _problem(builder: Builder) -> str | None:
    """Why an installed builder cannot work: too old, or its daemon or a part of it is missing; None where nothing is known against it."""
    said = _answer([builder.name, "--version"])[1]
    if builder.name == "docker" and "podman" in said.lower():
        return _("it is podman under another name")  # podman-docker; podman itself takes options that this one does not
    found = re.search(r"version v?(\d+)\.(\d+)", said)
    version = (int(found[1]), int(found[2])) if found else ()
    if version and builder.oldest and version < builder.oldest:
        return _("version {found} is too old, {oldest} is the oldest that knows cache mounts").format(
            found=".".join(map(str, version)), oldest=".".join(map(str, builder.oldest)))
    code, said = _answer(builder.probe) if builder.probe else (0, "")
    if code != 0:
        return _("its daemon does not answer ({reason})").format(reason=(said.splitlines() or ["?"])[-1][:200])
    if builder.name == "docker" and version >= (23, 0) and _answer(["docker", "buildx", "version"])[0] != 0:
        return _("its component buildx is missing, without which it builds with its old builder only")
    return None


def _answer(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and text of a short command; -1 where it cannot be started or takes too long."""
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return result.returncode, result.stdout.strip()


def host_architecture() -> str:
    """The architecture of this computer in the words of image platforms."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def run_builder(builder: Builder, source: BuildInput, context: Path, show: Show, *, push: bool = True, oci: Path | None = None) -> str:
    """Build a context, then push it or write an OCI layout; gives back the digest, or "" where the builder does not say it.

    Raises:
        ImageError: A step failed; the builder's own last lines are in the message.
    """
    reference = str(source.reference)
    values = {"platform": source.image.platform, "context": str(context), "ref": reference, "tag": source.reference.tag, "path": str(oci or "")}
    extra = [word for key, value in sorted(source.labels.items()) for word in ("--label", f"{key}={value}")]
    extra += [word for name in ("http_proxy", "https_proxy") if source.proxy for word in ("--build-arg", f"{name}={source.proxy}")]
    if oci is not None and builder.name == "docker" and _answer(["docker", "buildx", "version"])[0] != 0:
        raise ImageError(_("docker writes an OCI layout by its component buildx only, which is missing"), where="--oci", hint=_("install Docker's buildx, or use another builder"))
    if oci is not None and not builder.oci[-1].startswith("oci:"):
        _run([*_fill(builder.oci[:-1], values), *extra, str(context)], show, builder.env)
        return ""
    insecure = builder.insecure_build if source.plain_http else ()
    _run([*_fill(builder.build, values), *insecure, *_isolation(builder), *extra, str(context)], show, builder.env)
    if oci is not None:
        _run(_fill(builder.oci, values), show)
        return ""
    return _push(builder, values, source.plain_http, show) if push else ""


def _isolation(builder: Builder) -> Sequence[str]:
    """buildah without a runtime (in a container, on a login node) builds in a chroot; its own variable says so."""
    wanted = os.environ.get("BUILDAH_ISOLATION")
    return ["--isolation", wanted] if builder.name in ("buildah", "podman") and wanted else []


def _push(builder: Builder, values: dict[str, str], plain_http: bool, show: Show) -> str:
    with tempfile.TemporaryDirectory(prefix="nanochat-npu-") as folder:
        digestfile = Path(folder) / "digest"
        command = _fill(builder.push, {**values, "digestfile": str(digestfile)})
        _run([*command[:2], *(builder.insecure_push if plain_http else ()), *command[2:]], show)
        return digestfile.read_text("utf-8").strip() if digestfile.is_file() else ""


def _fill(words: Sequence[str], values: dict[str, str]) -> list[str]:
    return [word.format(**values) for word in words]


def _run(command: Sequence[str], show: Show, env: Mapping[str, str] | None = None) -> None:
    """Run a builder, pass its lines on as they come, and keep the last ones for the error."""
    last: deque[str] = deque(maxlen=LAST_LINES)
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True, env={**os.environ, **(env or {})},
        )
    except OSError as error:
        raise ImageError(_("{program} cannot be started: {reason}").format(program=command[0], reason=error.strerror)) from error
    try:
        for line in process.stdout or ():
            last.append(line.rstrip())
            show(line.rstrip())
        code = process.wait()
    finally:
        # After Ctrl-C: the builder and its children are a session of their own, and must not go on in the background.
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if code != 0:
        raise ImageError(
            _("{command} failed with {code}:\n{lines}").format(command=" ".join(command[:2]), code=code, lines="\n".join("  | " + line for line in last if line)),
            hint=_hint_for("\n".join(last)),
        )


def _hint_for(output: str) -> str | None:
    """What usually helps against what a builder said."""
    hints = (
        ("no space left on device", _("free some disk, or point the builder's storage elsewhere")),
        ("exec format error", _("this computer cannot run the image's architecture; --builder layers needs no emulation")),
        ("server gave HTTP response to HTTPS client", _("the registry has no TLS: image.plain_http: true (docker also wants it among its daemon's insecure-registries)")),
        ("x509:", _("give the builder the site's CA: certs.d/HOST/ca.crt below /etc/docker or /etc/containers")),
        ("unauthorized", _("log in to the registry with this builder")),
        ("authentication required", _("log in to the registry with this builder")),
        ("Cannot connect to the Docker daemon", _("start the daemon, or use another builder: --builder layers needs none")),
        ("buildx component is missing", _("install Docker's buildx, or use another builder")),
        ("is not a docker command", _("install Docker's buildx, or use another builder")),
        ("exporter is not supported", _("this docker writes no OCI layout: use buildah or podman, or --builder layers")),
        ("unknown flag", _("this builder is too old; see docker/README.md for the versions that were tried")),
        ("invalid mount type", _("this builder is too old; see docker/README.md for the versions that were tried")),
        ("manifest unknown", _("the base image does not exist under that name; see image.base and nanochat-npu image matrix")),
        ("connection refused", _("a registry cannot be reached: check its name, the network and image.mirrors.proxy")),
        ("no such host", _("a registry cannot be reached: check its name, the network and image.mirrors.proxy")),
        ("connection reset", _("the connection was cut: run the command again, what arrived is not sent twice")),
        ("unexpected EOF", _("the connection was cut: run the command again, what arrived is not sent twice")),
        ("image check:", _("the versions inside the image disagree; see the lines above")),
    )
    return next((hint for text, hint in hints if text.lower() in output.lower()), None)
