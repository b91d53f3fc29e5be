"""An OCI image layout: the folder form of an image, for sites that carry images in by hand."""

import json
import shutil
from pathlib import Path

from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _
from nanochat_npu.image.registry import Manifest

__all__ = ["OciLayout"]


class OciLayout:
    """A folder that takes blobs and one manifest, like a registry does (image-spec 1.1, ``image-layout.md``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has_blob(self, digest: str) -> bool:
        """True if the folder has this blob."""
        return self._path(digest).is_file()

    def mount(self, digest: str, repository: str) -> bool:
        """False: a folder has no neighbours to take blobs from."""
        return False

    def upload(self, digest: str, source: bytes | Path) -> None:
        """Put a blob into the folder."""
        if self.has_blob(digest):
            return
        path = self._path(digest)
        partial = path.with_suffix(".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, bytes):
                partial.write_bytes(source)
            else:
                shutil.copyfile(source, partial)
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise ImageError(_("the image cannot be written: {reason}").format(reason=error.strerror or error), where=str(path)) from error

    def put_manifest(self, manifest: Manifest, version: str) -> str:
        """Write the manifest and the index that names it; before that the folder is no image."""
        self.upload(manifest.digest, manifest.content)
        entry = {"mediaType": manifest.media_type, "digest": manifest.digest, "size": len(manifest.content), "annotations": {"org.opencontainers.image.ref.name": version}}
        index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
        try:
            (self.folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}', "utf-8")
            (self.folder / "index.json").write_text(json.dumps(index), "utf-8")
        except OSError as error:
            raise ImageError(_("the image cannot be written: {reason}").format(reason=error.strerror or error), where=str(self.folder)) from error
        return manifest.digest

    def _path(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")
