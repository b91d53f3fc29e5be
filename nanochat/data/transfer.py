"""Fetching one file: resumed where it broke off, verified before it gets its name, from the next source when one fails.

What arrives is written to NAME.partial. The file is renamed only when its size and SHA-256 are what they have to be; what is
to be expected comes from the manifest, else from the server (Hugging Face and its mirrors send the SHA-256 of large files as
``X-Linked-ETag``, see `huggingface_hub.file_download`).
"""

import email.utils
import errno
import hashlib
import http.client
import os
import random
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from nanochat import __version__
from nanochat.contract import ExitCode
from nanochat.data.manifest import Shard
from nanochat.errors import TrainerError

__all__ = ["DownloadFailed", "Fetched", "Patience", "Stopped", "fetch"]

CHUNK_BYTES = 1 << 20
SPOILT_AT_MOST = 2
PERMANENT = (400, 401, 403, 404, 405, 410, 451)
"""Answers after which the same question makes no sense; the next source is asked."""


class DownloadFailed(TrainerError):
    """A file could not be had from any source; `code` is NOT_READY if another try later may help, else BAD_DATA."""

    exit_code = ExitCode.BAD_DATA


class Stopped(Exception):
    """The download was asked to stop."""


class _Broken(Exception):
    """One attempt failed. `later`: another attempt may succeed; `wait_s`: not before."""

    def __init__(self, reason: str, *, later: bool, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.later, self.wait_s = later, wait_s


@dataclass(frozen=True)
class Patience:
    """How long is tried.

    Args:
        attempts: At one source without any new byte; progress starts the count anew.
        timeout_s: Without a byte on an open connection.
        first_wait_s: Before the second attempt; doubled each time, with some randomness so that many do not come back at once.
        longest_wait_s: Between attempts, also where a server asks for more.
    """

    attempts: int = 5
    timeout_s: float = 30.0
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0


@dataclass(frozen=True)
class Fetched:
    """What was fetched, and from where."""

    size_bytes: int
    sha256: str
    url: str


@dataclass
class _Transfer:
    """One file on its way."""

    shard: Shard
    partial: Path
    patience: Patience
    progress: Callable[[int], None]
    stop: Event
    digest: Any = field(default_factory=hashlib.sha256)
    have: int = 0
    etag: str | None = None
    spoilt: int = 0
    """Times that one source sent all of the file and it was not what it has to be."""


def fetch(
    shard: Shard, target: Path, patience: Patience = Patience(), progress: Callable[[int], None] = lambda _: None, stop: Event | None = None
) -> Fetched:
    """Fetches a shard to target.

    Args:
        shard: What, from where, and what it has to be.
        target: Where it will be; its folder exists.
        patience: How long is tried.
        progress: Called with bytes that came (negative where they were thrown away).
        stop: Set from another thread to give up.

    Raises:
        DownloadFailed: No source had it; each source's reason is in the message.
        Stopped: `stop` was set; the partial file stays for the next time.
    """
    transfer = _Transfer(shard, target.with_name(f"{target.name}.partial"), patience, progress, stop or Event())
    transfer.progress(_take_up(transfer))
    reasons, later = [], False
    for url in shard.urls:
        try:
            found = _from_one_source(transfer, url)
            transfer.partial.replace(target)
            return found
        except _Broken as broken:
            reasons.append(f"{_shown(url)}: {broken}")
            later = later or broken.later
        except OSError as error:
            raise DownloadFailed(f"{shard.name} cannot be written: {error.strerror}", where=str(target), hint=_space_hint(error, target)) from error
    raise DownloadFailed(
        f"{shard.name}: " + "; ".join(reasons), where=str(target.parent), code=ExitCode.NOT_READY if later else ExitCode.BAD_DATA,
        hint="set HF_ENDPOINT or run.data.mirrors to a mirror that can be reached, or copy the file there",
    )


def _shown(url: str) -> str:
    """A URL without its query and without user and password, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _space_hint(error: OSError, target: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{shutil.disk_usage(target.parent).free / 1e9:.1f} GB are free; make room, lower run.data.shards, or set run.data.dir"
    return "check the permissions of the folder, or set run.data.dir"


def _take_up(transfer: _Transfer) -> int:
    """Bytes of an earlier try that can be gone on from."""
    try:
        with transfer.partial.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                transfer.digest.update(chunk)
                transfer.have += len(chunk)
    except FileNotFoundError:
        pass
    return transfer.have


def _throw_away(transfer: _Transfer) -> None:
    transfer.progress(-transfer.have)
    transfer.partial.unlink(missing_ok=True)
    transfer.digest, transfer.have, transfer.etag = hashlib.sha256(), 0, None


def _from_one_source(transfer: _Transfer, url: str) -> Fetched:
    """Tries one source until it has everything or patience ends."""
    patience, failures, wait_s = transfer.patience, 0, transfer.patience.first_wait_s
    transfer.spoilt = 0
    while True:
        before = transfer.have
        try:
            return _attempt(transfer, url)
        except _Broken as broken:
            if transfer.have > before:  # it moved: that is a bad line, not a dead one
                failures, wait_s = 0, patience.first_wait_s
            failures += 1
            if not broken.later or failures >= patience.attempts:
                raise
            if transfer.stop.wait(min(max(wait_s * random.uniform(0.5, 1.0), broken.wait_s), patience.longest_wait_s)):
                raise Stopped from broken
            wait_s *= 2


def _attempt(transfer: _Transfer, url: str) -> Fetched:
    with _opened(transfer, url) as answer:
        size, digest = _expected(transfer, answer)
        with transfer.partial.open("ab") as file:
            _receive(transfer, answer, file, size)
            file.flush()
            os.fsync(file.fileno())
    if size is not None and transfer.have < size:
        raise _Broken(f"broke off after {transfer.have:,} of {size:,} bytes", later=True)
    found = transfer.digest.hexdigest()
    if size is not None and transfer.have > size:
        _throw_away(transfer)
        raise _Broken(f"sent more than {size:,} bytes", later=False)
    if digest is not None and found != digest:
        _throw_away(transfer)
        transfer.spoilt += 1  # once more from the beginning: what was there before may have come from another source
        raise _Broken(f"SHA-256 is {found[:16]}…, it has to be {digest[:16]}…", later=transfer.spoilt < SPOILT_AT_MOST)
    _check_parquet(transfer)
    return Fetched(transfer.have, found, _shown(url))


def _opened(transfer: _Transfer, url: str) -> Any:
    """The answer of the server, positioned after what is there already."""
    headers = {"User-Agent": f"nanochat-npu/{__version__}", "Accept-Encoding": "identity"}
    if transfer.have:
        headers["Range"] = f"bytes={transfer.have}-"
        if transfer.etag:
            headers["If-Range"] = transfer.etag
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  (http, https and file only: the manifest sees to it)
    token = os.environ.get("HF_TOKEN")
    if token and _is_hub(url):
        request.add_unredirected_header("Authorization", f"Bearer {token}")  # the storage it redirects to must not see it
    redirects = _Redirects()
    try:
        answer = urllib.request.build_opener(redirects).open(request, timeout=transfer.patience.timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            _refused(transfer, error)
    except urllib.error.URLError as error:
        missing = isinstance(error.reason, FileNotFoundError)
        raise _Broken(f"{error.reason}", later=not missing and urlsplit(url).scheme != "file") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(f"{type(error).__name__}: {error}", later=True) from error
    if transfer.have and not _continues(transfer, answer):
        _throw_away(transfer)
    for name, value in redirects.linked.items():
        answer.headers[name] = value
    return answer


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects and keeps what the hub says about the file itself: the storage it points to does not repeat it."""

    def __init__(self) -> None:
        self.linked: dict[str, str] = {}

    def redirect_request(self, request: Any, answer: Any, code: int, message: str, headers: Any, url: str) -> urllib.request.Request | None:
        """The request to follow with."""
        self.linked.update({name: headers[name] for name in ("X-Linked-ETag", "X-Linked-Size") if headers[name]})
        return super().redirect_request(request, answer, code, message, headers, url)


def _is_hub(url: str) -> bool:
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    return urlsplit(url).netloc == urlsplit(endpoint).netloc


def _refused(transfer: _Transfer, error: urllib.error.HTTPError) -> None:
    """Turns an answer that is no file into what it means. Always raises."""
    if error.code == 416 and transfer.have:  # there is nothing after what we have: too much, or another file
        _throw_away(transfer)
        raise _Broken("the partial file did not fit; starting anew", later=True) from error
    reason = f"HTTP {error.code} {error.reason}"
    if error.code in (401, 403):
        reason += " (set HF_TOKEN if it needs an account)"
    raise _Broken(reason, later=error.code not in PERMANENT, wait_s=_retry_after_s(error.headers.get("Retry-After"))) from error


def _retry_after_s(value: str | None) -> float:
    """Seconds that a server asks to wait: a number or a date."""
    if not value:
        return 0.0
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return 0.0


def _continues(transfer: _Transfer, answer: Any) -> bool:
    """True if the answer begins exactly after what is there; servers may ignore a range and send all."""
    if getattr(answer, "status", None) != 206:
        return False
    match = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return match is not None and int(match[1]) == transfer.have


def _expected(transfer: _Transfer, answer: Any) -> tuple[int | None, str | None]:
    """Size and SHA-256 that the file has to have; None where nobody knows."""
    headers = answer.headers
    transfer.etag = headers.get("ETag") if not str(headers.get("ETag", "")).startswith("W/") else None
    length = headers.get("Content-Length")
    size = transfer.have + int(length) if length and length.isdigit() else None
    linked = str(headers.get("X-Linked-ETag", "")).strip('"')  # the SHA-256 of the content, as Git LFS names it
    digest = transfer.shard.sha256 or (linked if re.fullmatch(r"[0-9a-f]{64}", linked) else None)
    wanted = transfer.shard.size_bytes
    if wanted is not None and size is not None and size != wanted:
        _throw_away(transfer)
        raise _Broken(f"has {size:,} bytes, it has to have {wanted:,}", later=False)
    return wanted if wanted is not None else size, digest


def _receive(transfer: _Transfer, answer: Any, file: BinaryIO, size: int | None) -> None:
    for chunk in _chunks(transfer, answer):
        file.write(chunk)
        transfer.digest.update(chunk)
        transfer.have += len(chunk)
        transfer.progress(len(chunk))
        if size is not None and transfer.have > size:
            return
        if transfer.stop.is_set():
            raise Stopped


def _chunks(transfer: _Transfer, answer: Any) -> Iterator[bytes]:
    while True:
        try:
            chunk = answer.read(CHUNK_BYTES)
        except http.client.IncompleteRead as error:
            if error.partial:
                yield error.partial
            raise _Broken(f"broke off after {transfer.have:,} bytes", later=True) from error
        except (OSError, http.client.HTTPException) as error:
            raise _Broken(f"broke off after {transfer.have:,} bytes: {type(error).__name__}: {error}", later=True) from error
        if not chunk:
            return
        yield chunk


def _check_parquet(transfer: _Transfer) -> None:
    """An error page or a login form with status 200 is no shard, whatever its checksum."""
    with transfer.partial.open("rb") as file:
        head = file.read(4)
        file.seek(max(0, transfer.have - 4))
        tail = file.read(4)
    if transfer.shard.name.endswith(".parquet") and (head != b"PAR1" or tail != b"PAR1"):
        _throw_away(transfer)
        raise _Broken("what came is not a parquet file (a proxy's or a login page?)", later=False)
