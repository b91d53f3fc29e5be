"""The state folder: where local jobs and all receipts live, and how several commands share it without harming each other.

::

    $NANOCHAT_NPU_HOME/
      jobs/NAME/           one folder per job; its inside is `nanochat.contract.layout`
      archive/NAME/N/      folders that ``submit --rerun`` put aside, oldest first
      locks/NAME.lock      held while a job of that name is made, archived or removed

Files are written under a temporary name and renamed, so a reader sees the old text or the new one; whatever is read here is
read leniently, since a newer version, a full disk or an editor may have had its hands in it.
"""

import difflib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from nanochat_npu.errors import ClusterError, JobNotFound
from nanochat_npu.i18n import _
from nanochat_npu.writing import replace_text

__all__ = [
    "JobFolder", "Receipt", "Store", "home_dir", "is_locked", "nearest", "not_found", "overwrite_json", "read_json", "take_lock", "write_json",
]

NAME_PATTERN = re.compile(r"[a-z][a-z0-9-]*")
"""Names that a spec accepts; nothing else may become a path."""
LOCK_TIMEOUT_S = 20.0
"""A name's lock is held for well under a second; longer means that its holder hangs."""


def home_dir(environ: dict[str, str] | None = None) -> Path:
    """The state folder: ``NANOCHAT_NPU_HOME``, else ``nanochat-npu`` in the XDG state folder."""
    env = os.environ if environ is None else environ
    if env.get("NANOCHAT_NPU_HOME"):
        return Path(os.path.expanduser(env["NANOCHAT_NPU_HOME"])).absolute()  # noqa: PTH111  (of a person who does not exist it leaves the name)
    state = env.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "nanochat-npu"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; {} where the file is missing, unreadable, not JSON or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a file by an object in one step; a reader never sees half of it."""
    replace_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def overwrite_json(path: Path, value: dict[str, Any]) -> None:
    """Write an object over a file where it stands: on a full disk that needs no room as long as it fits the blocks that are there.

    Not in one step: a reader may see half of it, and reads nothing then.
    """
    with path.open("r+b") as file:
        file.write((json.dumps(value, ensure_ascii=False) + "\n").encode())
        file.truncate()
        file.flush()


def take_lock(path: Path, *, timeout_s: float = 0.0) -> int | None:
    """A descriptor that holds the lock on a file until it and all its copies are closed, or None if somebody else has it.

    The lock dies with its holder, whatever kills that (flock), so it also tells whether the holder lives.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(0.02)
        else:
            return descriptor


def is_locked(path: Path) -> bool:
    """True while somebody holds the lock on a file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A shared lock, so that two commands that look at the same time do not mistake each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, or None where none is near."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return close[0] if close else None


def not_found(name: str, names: Iterable[str]) -> JobNotFound:
    """The error for a job that does not exist, with the nearest name in its hint."""
    known = sorted(names)
    close = nearest(name, known)
    if close:
        hint = _("did you mean {name}?  (all jobs: nanochat-npu list)").format(name=close)
    elif known:
        hint = _("see all jobs: nanochat-npu list")
    else:
        hint = _("there are no jobs yet; start one: nanochat-npu submit tiny --backend local --follow")
    return JobNotFound(_("there is no job of this name"), where=name, hint=hint, details={"did_you_mean": close})


@dataclass(frozen=True)
class Receipt:
    """What we wrote down about a submission. Read leniently: what is missing or of another type has its default."""

    job: str = ""
    backend: str = "local"
    submission_id: str = ""
    spec_sha256: str = ""
    owner: str = ""
    submitted_s: float = 0.0
    where: str = ""
    """Folder of the job, or context/namespace/name on a cluster."""
    origin: list[str] = field(default_factory=list)
    """Command line that asked for it."""
    versions: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    """Facts of one backend: namespace, context, uid, image."""
    schema_version: int = 1

    @classmethod
    def of(cls, value: dict[str, Any]) -> "Receipt":
        """The receipt in a JSON object."""
        default = cls()
        known = {
            f.name: value[f.name] for f in fields(cls)
            if isinstance(value.get(f.name), (int, float) if f.name == "submitted_s" else type(getattr(default, f.name)))
        }
        return cls(**known)

    def as_json(self) -> dict[str, Any]:
        """The receipt as a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job and the submitter's files in it."""

    path: Path

    @property
    def name(self) -> str:
        """The job's name."""
        return self.path.name

    @property
    def spec_file(self) -> Path:
        """The resolved spec, as submitted."""
        return self.path / "spec.yaml"

    @property
    def run_file(self) -> Path:
        """What the trainer reads."""
        return self.path / "run.json"

    @property
    def receipt_file(self) -> Path:
        """What we wrote down about the submission."""
        return self.path / "receipt.json"

    @property
    def state_file(self) -> Path:
        """What the supervisor writes about the job's state."""
        return self.path / "state.json"

    @property
    def settings_file(self) -> Path:
        """What the supervisor was told to do."""
        return self.path / "supervisor.json"

    @property
    def intent_file(self) -> Path:
        """What a person wants of a running job: ``{"stop": "gracefully"}`` or ``"now"``."""
        return self.path / "intent.json"

    @property
    def lock_file(self) -> Path:
        """Locked while the supervisor lives; holds its process id."""
        return self.path / "supervisor.lock"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor did and when; tracebacks, should it have a bug."""
        return self.path / "supervisor.log"

    @property
    def attempts(self) -> list[int]:
        """Numbers of the attempts that left a folder, in order."""
        try:
            names = [path.name for path in (self.path / "attempts").iterdir()]
        except OSError:
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    @property
    def has_checkpoint(self) -> bool:
        """True if there is a checkpoint to go on from: its manifest is written last."""
        return any((self.path / "checkpoints").glob("*/step_*/manifest.json"))

    @property
    def supervisor_pid(self) -> int | None:
        """Process id of the supervisor, or None where none lives."""
        if not is_locked(self.lock_file):
            return None
        try:
            return int(self.lock_file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def receipt(self) -> Receipt:
        """The receipt, or an empty one."""
        return Receipt.of(read_json(self.receipt_file))


@dataclass(frozen=True)
class Store:
    """All jobs in a state folder."""

    home: Path

    @classmethod
    def default(cls) -> "Store":
        """The store of the user who runs this command."""
        return cls(home_dir())

    def folder(self, name: str) -> JobFolder:
        """Folder that a job of this name has or would have.

        Raises:
            JobNotFound: The name is not one that a job can have.
        """
        if not NAME_PATTERN.fullmatch(name):
            raise not_found(name, self.names())
        return JobFolder(self.home / "jobs" / name)

    def names(self) -> list[str]:
        """Names of all jobs here, sorted; none where there is no folder of jobs yet.

        Raises:
            ClusterError: The folder is there and cannot be read: "no jobs" would be wrong.
        """
        try:
            with os.scandir(self.home / "jobs") as entries:
                return sorted(entry.name for entry in entries if NAME_PATTERN.fullmatch(entry.name) and entry.is_dir())
        except OSError as error:
            if not os.path.lexists(self.home / "jobs") and not isinstance(error, PermissionError):
                return []
            raise ClusterError(
                _("the folder of jobs cannot be read: {reason}").format(reason=error.strerror), where=str(self.home / "jobs"),
                hint=_("mend it, or point NANOCHAT_NPU_HOME to another folder"),
            ) from error

    def existing(self, name: str) -> JobFolder:
        """The folder of a job that exists.

        Raises:
            JobNotFound: There is none; the hint names the nearest.
        """
        folder = self.folder(name)
        if not folder.path.is_dir():
            raise not_found(name, self.names())
        return folder

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Keep other commands from making, archiving or removing a job of this name.

        Raises:
            ClusterError: Another command holds it for too long, or the state folder cannot be written.
        """
        try:
            descriptor = take_lock(self.home / "locks" / f"{name}.lock", timeout_s=LOCK_TIMEOUT_S)
        except OSError as error:
            raise unwritable(self.home, error) from error
        if descriptor is None:
            raise ClusterError(
                _("another command is busy with this job"), where=name, hint=_("try again in a moment: nanochat-npu status {name}").format(name=name)
            )
        try:
            yield
        finally:
            os.close(descriptor)

    def create(self, name: str, files: dict[str, str]) -> JobFolder:
        """Make a job's folder with these files in one step: it is there completely, or not at all.

        Raises:
            ClusterError: It cannot be written.
        """
        folder = self.folder(name)
        temporary = folder.path.with_name(f".{name}.{os.getpid()}.tmp")
        try:
            temporary.mkdir(parents=True)
            for relative, text in files.items():
                (temporary / relative).write_text(text, encoding="utf-8")
            temporary.rename(folder.path)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise unwritable(folder.path, error) from error
        return folder

    def archive(self, folder: JobFolder) -> Path:
        """Put a job's folder aside under the next free number; where it is now."""
        parent = self.home / "archive" / folder.name
        try:
            parent.mkdir(parents=True, exist_ok=True)
            number = max((int(path.name) for path in parent.iterdir() if path.name.isdigit()), default=0) + 1
            folder.path.rename(parent / str(number))
        except OSError as error:
            raise unwritable(parent, error) from error
        return parent / str(number)

    def remove(self, folder: JobFolder) -> None:
        """Delete a job's folder and everything in it."""
        doomed = folder.path.with_name(f".{folder.name}.{os.getpid()}.gone")
        try:
            # Renamed first: should deleting be interrupted, no half job is left under the name.
            folder.path.rename(doomed)
            shutil.rmtree(doomed)
        except OSError as error:
            raise unwritable(folder.path, error) from error


def unwritable(path: Path, error: OSError) -> ClusterError:
    """The error for a state folder that cannot be written."""
    return ClusterError(
        _("cannot write: {reason}").format(reason=error.strerror or error), where=str(path),
        hint=_("point NANOCHAT_NPU_HOME to a folder that you can write and that has room"),
    )
