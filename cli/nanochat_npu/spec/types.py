"""Scalar types of the spec, each with the outside rule that it obeys."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "AbsolutePath", "Cores", "DnsLabel", "DnsSubdomain", "EnvName", "ImageRef", "JobName", "LabelValue", "Port", "PositiveFloat", "PositiveInt",
    "QuantityText", "Strict",
]


class Strict(BaseModel):
    """A block of the spec: unknown keys, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False, frozen=True)


PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Cores = Annotated[float, Field(gt=0)]
Port = Annotated[int, Field(ge=1024, le=65535)]

JobName = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=54)]
"""A DNS-1035 label, since Volcano's svc plugin makes a Service of that name; 54 leaves room for ``-worker-N`` in a hostname (63)."""

DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""RFC 1123 label: namespaces, volume names."""

DnsSubdomain = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""RFC 1123 subdomain: queues, claims, secrets, priority classes."""

LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)]
"""Value of a Kubernetes label."""

EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Name of an environment variable that every shell can export."""

QuantityText = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$")]
"""A Kubernetes quantity of bytes: 512Gi, 1.5Ti; ``8GB`` is not one (Kubernetes refuses it)."""

AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00-\x1f:]*$")]
"""A path inside the container. Kubernetes refuses ``:`` in a mountPath."""

ImageRef = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", max_length=512)]
"""An image reference: registry/repository[:tag][@sha256:digest]."""
