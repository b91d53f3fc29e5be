"""From a plan to the bundle: exact text of every file, the same bytes on every machine. Pure but for reading our own templates."""

import base64
import json
from functools import cache

import jinja2
import yaml

from nanochat_npu.bundle import CONFIGMAPS, DOCKERFILE, ENTRYPOINT, JOB, RUN_JSON, Bundle
from nanochat_npu.errors import RenderError
from nanochat_npu.i18n import _
from nanochat_npu.image.describe import ImagePlan, builds_image, describe_image, image_reference
from nanochat_npu.image.trainer_wheel import trainer_wheel
from nanochat_npu.manifest import JOB_MOUNT, TASK, Manifest, manifest_of
from nanochat_npu.patch import dump_patched, merge
from nanochat_npu.plan import Plan
from nanochat_npu.quoting import TEMPLATES, environment
from nanochat_npu.spec import Backend
from nanochat_npu.verify import parse_documents, verify_configmaps, verify_job

__all__ = ["render", "render_dockerfile", "render_run_json", "render_text"]


def render(plan: Plan, *, image: str | None = None) -> Bundle:
    """The exact files of a submission.

    Args:
        plan: What is to run, and where.
        image: Reference of a finished image (by digest); default: the spec's own, or the tag that a build would give.

    Raises:
        RenderError: A value cannot be written, or what came out is not what the plan says.
        ImageError: The image cannot be described.
    """
    run_json, entrypoint = render_run_json(plan), _file(ENTRYPOINT)
    files = {RUN_JSON: run_json, ENTRYPOINT: entrypoint}
    if plan.spec.backend is Backend.VOLCANO:
        dockerfile = render_dockerfile(describe_image(plan)) if builds_image(plan) else ""
        manifest = manifest_of(plan, image or image_reference(plan, dockerfile))
        files |= {
            **({DOCKERFILE: dockerfile} if dockerfile else {}),
            CONFIGMAPS: _configmaps(manifest, run_json, entrypoint),
            JOB: _job(manifest, plan),
        }
    order = (DOCKERFILE, ENTRYPOINT, RUN_JSON, CONFIGMAPS, JOB)
    return Bundle({name: files[name] for name in order if name in files}, plan.submission_id)


def render_text(plan: Plan) -> str:
    """All files of a submission as one text, for ``render`` without ``--to`` and for ``submit --dry-run``."""
    return render(plan).text()


def render_run_json(plan: Plan) -> str:
    """Text of run.json; dumped from the model, never templated."""
    return json.dumps(plan.run_file.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


CONFIGMAP_MAX_BYTES = 1024 * 1024
"""Kubernetes' limit on the data of one ConfigMap."""


@cache
def _environment() -> jinja2.Environment:
    return environment()


@cache
def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _fill(template: str, **values: object) -> str:
    try:
        return _environment().get_template(template).render(**values)
    except jinja2.TemplateError as error:
        raise RenderError(_("the template cannot be filled in: {reason}").format(reason=error), where=template, hint=_("this is a bug; please report the spec")) from error


def render_dockerfile(image: ImagePlan) -> str:
    """Text of the Dockerfile of an image."""
    return _fill("Dockerfile.j2", i=image)


def _configmaps(manifest: Manifest, run_json: str, entrypoint: str) -> str:
    files = {RUN_JSON: run_json, ENTRYPOINT: entrypoint}
    code = _code(sum(len(content.encode()) for content in files.values())) if manifest.code_file else ""
    text = _fill("configmaps.yaml.j2", m=manifest, run_files=files, code=code)
    verify_configmaps(parse_documents(text, CONFIGMAPS), manifest, files, code, CONFIGMAPS)
    return text


def _code(taken: int) -> str:
    """The trainer's wheel as a ConfigMap carries it, beside so many bytes of other files.

    Raises:
        RenderError: Together they are larger than a ConfigMap may be.
    """
    content = trainer_wheel().content
    if len(content) + taken > CONFIGMAP_MAX_BYTES:
        raise RenderError(
            _("the trainer's wheel and the job's files have {size} bytes, a ConfigMap holds {limit}").format(size=len(content) + taken, limit=CONFIGMAP_MAX_BYTES), where="image.code",
            hint=_("build an image: image.code: image"),
        )
    return base64.b64encode(content).decode()


def _job(manifest: Manifest, plan: Plan) -> str:
    text = _fill("volcano-job.yaml.j2", m=manifest, task=TASK, job_mount=JOB_MOUNT)
    (job,) = parse_documents(text, JOB)
    verify_job(job, manifest, JOB)
    return _patched(text, job, plan) if plan.spec.cluster.patch else text


def _patched(text: str, job: dict[str, object], plan: Plan) -> str:
    """The job with the spec's patch merged in; the header stays, other comments give way to marks at what was patched."""
    changed: set[tuple[str, ...]] = set()
    merged = merge(job, plan.spec.cluster.patch, changed=changed)
    header = "".join(line + "\n" for line in text.splitlines() if line.startswith("# "))
    shown = yaml.safe_dump(plan.spec.cluster.patch, sort_keys=False, allow_unicode=True)
    note = "# cluster.patch of the spec was merged in last:\n" + "".join(f"#   {line}\n" for line in shown.splitlines())
    result = header + note + dump_patched(merged, changed)
    (parsed,) = parse_documents(result, JOB)
    if parsed != merged:
        raise RenderError(_("cluster.patch did not survive being written to YAML"), where="cluster.patch")
    _refuse_contradiction(parsed, plan)
    return result


def _refuse_contradiction(job: dict[str, object], plan: Plan) -> None:
    """A patch may add what we do not know; it may not change what the launcher counts on."""
    from nanochat_npu.partial import dig

    nodes, name = plan.spec.resources.nodes, plan.name
    wanted = {
        ("metadata", "name"): name, ("metadata", "namespace"): plan.spec.cluster.namespace, ("spec", "minAvailable"): nodes, ("spec", "tasks", 0, "name"): TASK,
        ("spec", "tasks", 0, "replicas"): nodes, ("spec", "tasks", 0, "template", "spec", "restartPolicy"): "Never",
        ("spec", "tasks", 0, "template", "spec", "containers", 0, "name"): "trainer",
    }
    for path, value in wanted.items():
        if dig(job, *path) != value:
            place = ".".join(map(str, path))
            raise RenderError(
                _("{place} must stay {value}: the launcher counts on it").format(place=place, value=value), where="cluster.patch",
                hint=_("change the field of the spec that it comes from"),
            )
