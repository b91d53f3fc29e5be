"""Which files a data set consists of, and where each can be had.

Two data sets are built in, as upstream nanochat published them; any other comes as a manifest of one's own::

    {"shards": [{"url": "https://…/a.parquet", "size": 123, "sha256": "…"}, …, {"url": …, "split": "val"}]}

(or the same objects one a line). `size` and `sha256` may be left out; without any `split: val` the last shard is for
validation. The validation shard is pinned by name, so no stray file can change what bpb means.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from nanochat.contract import DataConfig, DataSource
from nanochat.errors import BadConfig, BadData

__all__ = ["DataSet", "Manifest", "Shard", "manifest_of", "read_manifest"]

HF_ENDPOINT = "https://huggingface.co"
MODELSCOPE_ENDPOINT = "https://modelscope.cn"


@dataclass(frozen=True)
class Shard:
    """One file: its name in the folder, where it comes from in order of trial, and what it has to be."""

    name: str
    urls: tuple[str, ...]
    split: str = "train"
    size_bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Manifest:
    """All files of a data set that a run uses; the validation shard is the last."""

    name: str
    shards: tuple[Shard, ...]

    def of(self, split: str) -> tuple[Shard, ...]:
        """Shards of "train" or "val", in order."""
        return tuple(shard for shard in self.shards if shard.split == split)


@dataclass(frozen=True)
class DataSet:
    """A published data set of numbered shards, of which the last is for validation."""

    name: str
    repository: str
    last: int
    digests: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Size and SHA-256 by name, where known."""

    def manifest(self, count: int, mirrors: Sequence[str], environ: Mapping[str, str]) -> Manifest:
        """The first `count` shards for training and the last one for validation."""
        numbers = [*range(min(count, self.last)), self.last]
        shards = []
        for number in numbers:
            name = f"shard_{number:05d}.parquet"
            size, digest = self.digests.get(name, (None, None))
            urls = (*(_mirror_url(mirror, self.repository, name) for mirror in mirrors), _hub_url(_endpoint(environ), self.repository, name))
            shards.append(Shard(name, urls, "val" if number == self.last else "train", size, digest))
        return Manifest(self.name, tuple(shards))


DATA_SETS: dict[DataSource, DataSet] = {
    # Numbers of shards: karpathy/nanochat nanochat/dataset.py at 92d63d4 (ClimbMix) and 3a5e0bc (FineWeb-Edu).
    DataSource.CLIMBMIX: DataSet("climbmix", "karpathy/climbmix-400b-shuffle", 6542),
    DataSource.FINEWEB_EDU: DataSet("fineweb-edu", "karpathy/fineweb-edu-100b-shuffle", 1822),
}
DEFAULT_SHARDS = 8
"""Training shards where the plan has not derived a number: enough for a tokenizer and a short run."""


def _endpoint(environ: Mapping[str, str]) -> str:
    """Hugging Face's endpoint, or the mirror that its own tools would use too."""
    return environ.get("HF_ENDPOINT", "").rstrip("/") or HF_ENDPOINT


def _hub_url(endpoint: str, repository: str, name: str) -> str:
    return f"{endpoint}/datasets/{repository}/resolve/main/{quote(name)}"


def _mirror_url(mirror: str, repository: str, name: str) -> str:
    """Where a mirror has a file.

    ``hf:ENDPOINT`` is laid out as huggingface.co, ``modelscope[:OWNER/NAME]`` as modelscope.cn (the call is that of its own
    library, ``HubApi.get_dataset_file_url``); anything else is a URL prefix that file names are appended to.

    Raises:
        BadConfig: It is none of these.
    """
    if mirror.startswith("hf:"):
        return _hub_url(mirror.removeprefix("hf:").rstrip("/"), repository, name)
    if mirror == "modelscope" or mirror.startswith("modelscope:"):
        owned = mirror.removeprefix("modelscope").removeprefix(":") or repository
        return f"{MODELSCOPE_ENDPOINT}/api/v1/datasets/{owned}/repo?Source=SDK&Revision=master&FilePath={quote(name, safe='')}"
    if urlsplit(mirror).scheme not in ("http", "https", "file"):
        raise BadConfig(
            f"mirror {mirror!r} is not understood", where="run.data.mirrors",
            hint="give a URL prefix (https://…/ or file:///…/), hf:ENDPOINT, or modelscope:OWNER/NAME",
        )
    return f"{mirror.rstrip('/')}/{quote(name)}"


def manifest_of(data: DataConfig, environ: Mapping[str, str] = os.environ) -> Manifest:
    """The files that a run's data block asks for.

    Raises:
        BadConfig: The block lacks what the source needs.
        BadData: The manifest file is missing or wrong.
    """
    if data.source in DATA_SETS:
        return DATA_SETS[data.source].manifest(data.shards or DEFAULT_SHARDS, data.mirrors, environ)
    if data.source is not DataSource.MANIFEST:
        raise BadConfig(f"source {data.source} has no shards", where="run.data.source")
    if not data.manifest:
        raise BadConfig("source manifest needs a manifest", where="run.data.manifest", hint="set run.data.manifest=FILE.json")
    return read_manifest(Path(data.manifest), data.mirrors, limit=data.shards)


def read_manifest(path: Path, mirrors: Sequence[str] = (), limit: int | None = None) -> Manifest:
    """A manifest file; with a limit only so many of its training shards.

    Raises:
        BadData: It is missing or wrong; the message names the entry.
    """
    shards = [_shard(entry, i, path, mirrors) for i, entry in enumerate(_entries(path), 1)]
    names = [shard.name for shard in shards]
    double = next((name for name in names if names.count(name) > 1), None)
    if double:
        raise BadData(f"two shards are called {double!r}", where=str(path), hint="give one of them another name")
    if len(shards) < 2:
        raise BadData(f"{len(shards)} shards; training and validation need at least one each", where=str(path))
    if not any(shard.split == "val" for shard in shards):
        last = shards.pop()
        shards.append(Shard(last.name, last.urls, "val", last.size_bytes, last.sha256))
    train = [shard for shard in shards if shard.split == "train"]
    if not train:
        raise BadData("every shard is for validation", where=str(path))
    return Manifest(path.stem, (*train[:limit], *(shard for shard in shards if shard.split == "val")))


def _entries(path: Path) -> Iterable[Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"the manifest cannot be read: {error}", where=str(path)) from error
    try:
        document = json.loads(text)
        if isinstance(document, dict) and "url" in document:
            return [document]
        return list(document["shards"] if isinstance(document, dict) else document)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                entries.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise BadData("neither JSON with a list `shards` nor one object a line", where=f"{path}:{number}") from error
    return entries


def _shard(entry: Any, number: int, path: Path, mirrors: Sequence[str]) -> Shard:
    where = f"{path}: shard {number}"
    if isinstance(entry, str):
        entry = {"url": entry}
    if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
        raise BadData("needs a url", where=where)
    unknown = sorted(set(entry) - {"url", "name", "size", "sha256", "split"})
    if unknown:
        raise BadData(f"unknown key {unknown[0]!r}", where=where, hint="a shard has url, name, size, sha256 and split")
    url = entry["url"]
    if urlsplit(url).scheme not in ("http", "https", "file"):
        raise BadData(f"url {url!r} is not http, https or file", where=where)
    name = entry.get("name") or unquote(PurePosixPath(urlsplit(url).path).name)
    if not isinstance(name, str) or not name.endswith(".parquet") or PurePosixPath(name).name != name or name.startswith("."):
        raise BadData(f"{name!r} is not the plain name of a .parquet file", where=where, hint="give the shard a name")
    size, digest, split = entry.get("size"), entry.get("sha256"), entry.get("split", "train")
    if size is not None and (type(size) is not int or size <= 0):
        raise BadData(f"size {size!r} is not a number of bytes", where=where)
    if digest is not None and not (isinstance(digest, str) and len(digest) == 64 and set(digest.lower()) <= set("0123456789abcdef")):
        raise BadData(f"sha256 {digest!r} is not 64 hexadecimal digits", where=where)
    if split not in ("train", "val"):
        raise BadData(f"split {split!r} is neither train nor val", where=where)
    plain = [mirror for mirror in mirrors if urlsplit(mirror).scheme in ("http", "https", "file")]
    urls = (*(_mirror_url(mirror, "", name) for mirror in plain), url)
    return Shard(name, urls, split, size, digest.lower() if digest else None)
