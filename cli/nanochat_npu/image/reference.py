"""Image references: registry/repository[:tag][@digest], taken apart."""

import re
from dataclasses import dataclass

from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _

__all__ = ["Reference", "parse_reference"]

_FORM = re.compile(
    r"(?P<registry>[A-Za-z0-9.-]+(?::[0-9]+)?)/(?P<repository>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True)
class Reference:
    """An image in a registry; tag or digest may be empty."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"

    @property
    def version(self) -> str:
        """What the registry is asked for: the digest if there is one, else the tag."""
        return self.digest or self.tag or "latest"

    def at(self, digest: str) -> str:
        """The reference by digest, which nobody can move."""
        return f"{self.name}@{digest}"

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def parse_reference(text: str) -> Reference:
    """The parts of a reference.

    Raises:
        ImageError: It names no registry, or is not a reference at all.
    """
    found = _FORM.fullmatch(text)
    registry = found["registry"] if found else ""
    if not found or not ("." in registry or ":" in registry or registry == "localhost"):
        raise ImageError(
            _("{text} is not an image in a registry").format(text=text), where="image",
            hint=_("write registry.example.com/project/name:tag; image.registry names where a built image goes"),
        )
    return Reference(found["registry"], found["repository"], found["tag"] or "", found["digest"] or "")
