"""Brings tasks' examples into the tasks' folder: what the run's stages will ask for, verified where a checksum is known.

From where: ``TASKS_DIR/manifest.json`` where there is one, ``{"files": [{"name": "gsm8k/test.parquet", "url": …, "sha256": …}, …]}``, else
the parquet export of the data sets that upstream nanochat uses (karpathy/nanochat 92d63d4, ``tasks/*.py``), whose files a hub lists under
``/api/datasets/REPOSITORY/parquet/SUBSET/SPLIT``. ``HF_ENDPOINT`` names another hub. Files that are there already are never fetched.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from nanochat.contract import RunConfig, Stage
from nanochat.data.manifest import HF_ENDPOINT, Shard
from nanochat.data.transfer import Patience, fetch
from nanochat.errors import BadData
from nanochat.tasks.files import split_files, tasks_dir
from nanochat.tasks.registry import CHAT_CORE

__all__ = ["missing_bundle", "needed_splits", "stage_tasks"]

MANIFEST = "manifest.json"
PUBLISHED = {
    "arc-easy": ("allenai/ai2_arc", "ARC-Easy"), "arc-challenge": ("allenai/ai2_arc", "ARC-Challenge"), "mmlu": ("cais/mmlu", "all"),
    "gsm8k": ("openai/gsm8k", "main"), "humaneval": ("openai/openai_humaneval", "openai_humaneval"), "smoltalk": ("HuggingFaceTB/smol-smoltalk", "default"),
}
"""Task: repository and subset."""
TRAINING_SPLIT = {"mmlu": "auxiliary_train"}
MIXTURE = ("smoltalk", "mmlu", "gsm8k")


def needed_splits(run: RunConfig) -> list[tuple[str, str]]:
    """Task and split of all files that the run's stages read, each once."""
    trained: list[str] = []
    measured: list[str] = []
    if Stage.SFT in run.stages:
        auto = MIXTURE if run.data.source != "toy" else ()
        trained += [name for entry in run.sft.data for name in (auto if entry == "auto" else (entry,))]
    if Stage.RL in run.stages:
        trained.append(run.rl.task)
    if Stage.EVAL in run.stages:
        chat = {"chatcore"} & set(run.eval.tasks) or ({"auto"} & set(run.eval.tasks) and run.data.tasks_dir)
        measured += [*run.eval.tasks, *(CHAT_CORE if chat else ())]
    wanted = [(name, TRAINING_SPLIT.get(name, "train")) for name in trained] + [(name, "test") for name in (*trained, *measured)]
    return list(dict.fromkeys(pair for pair in wanted if pair[0] in PUBLISHED))


def missing_bundle(run: RunConfig) -> str | None:
    """Name of CORE's bundle within the tasks' folder where stage eval needs it and it is not there; None also where it is to lie elsewhere."""
    bundle = run.eval.bundle
    if Stage.EVAL not in run.stages or not bundle or Path(bundle).exists() or not (run.data.tasks_dir or run.data.dir):
        return None
    folder = tasks_dir(run)
    return Path(bundle).relative_to(folder).as_posix() if Path(bundle).is_relative_to(folder) else None


def stage_tasks(run: RunConfig, environ: Mapping[str, str] = os.environ, patience: Patience = Patience()) -> int:
    """Number of files that were fetched; all that the run needs are there when this returns.

    Raises:
        BadData: Offline and some are missing (all are listed), or the manifest is wrong.
        DownloadFailed: A file could not be had.
    """
    missing = [pair for pair in needed_splits(run) if not split_files(run, *pair)]
    bundle = missing_bundle(run)
    if not missing and bundle is None:
        return 0
    folder = tasks_dir(run)
    if run.data.offline or environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true"):
        raise BadData(
            "offline, and examples are missing: " + ", ".join([f"{task}/{split}.parquet" for task, split in missing] + ([bundle] if bundle else [])),
            where=str(folder),
            hint="copy them there, or set run.data.offline: false",
        )
    fetched = 0
    listed = _from_manifest(folder)
    if bundle:
        _fetch_split(folder, [_listed_bundle(listed, bundle, folder)], patience)
        fetched += 1
    for task, split in missing:
        shards = [shard for shard in listed if _belongs(shard.name, task, split)] or list(_published(folder, task, split, environ, patience))
        _fetch_split(folder, shards, patience)
        fetched += len(shards)
    return fetched


def _listed_bundle(listed: list[Shard], bundle: str, folder: Path) -> Shard:
    found = next((shard for shard in listed if shard.name == bundle), None)
    if found is None:
        raise BadData(
            f"the evaluation bundle {bundle} is not here, and no manifest says where it is", where=str(folder / bundle),
            hint=f"copy it there, or list it in {folder / MANIFEST} with name, url and sha256",
        )
    return found


def _fetch_split(folder: Path, shards: list[Shard], patience: Patience) -> None:
    """All files of a split, or none that would be taken for all: those of a folder come into one of another name first."""
    for shard in shards:
        final = folder / shard.name
        target = final if len(shards) == 1 else final.parent.with_name(f"{final.parent.name}.partial") / final.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file():
            fetch(shard, target, patience)
    if len(shards) > 1:
        ready = (folder / shards[0].name).parent
        ready.with_name(f"{ready.name}.partial").rename(ready)


def _belongs(name: str, task: str, split: str) -> bool:
    parts = PurePosixPath(name).parts
    return parts[0] == task and PurePosixPath(parts[1]).stem == split


def _from_manifest(folder: Path) -> list[Shard]:
    path = folder / MANIFEST
    if not path.is_file():
        return []
    try:
        entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["files"]
        shards = [Shard(str(e["name"]), (str(e["url"]),), size_bytes=e.get("size"), sha256=e.get("sha256")) for e in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadData(f"the manifest is not understood: {type(error).__name__}: {error}", where=str(path)) from error
    for shard in shards:
        parts = PurePosixPath(shard.name).parts
        if len(parts) not in (2, 3) or ".." in parts or shard.name.startswith("/"):
            raise BadData(f"{shard.name!r} is not TASK/SPLIT.parquet, TASK/SPLIT.jsonl or TASK/SPLIT/FILE", where=str(path))
    return shards


def _published(folder: Path, task: str, split: str, environ: Mapping[str, str], patience: Patience) -> Iterator[Shard]:
    """Files of a split as a hub lists them; a single one becomes SPLIT.parquet, several a folder."""
    repository, subset = PUBLISHED[task]
    endpoint = environ.get("HF_ENDPOINT", "").rstrip("/") or HF_ENDPOINT
    url = f"{endpoint}/api/datasets/{repository}/parquet/{subset}/{split}"
    listing = folder / task / f".{split}.list.json"
    listing.parent.mkdir(parents=True, exist_ok=True)
    fetch(Shard(listing.name, (url,)), listing, patience)
    try:
        urls = [str(each) for each in json.loads(listing.read_text(encoding="utf-8"))]
    except ValueError as error:
        raise BadData(f"the list of {repository} is not JSON: {error}", where=url) from error
    finally:
        listing.unlink(missing_ok=True)
    if not urls:
        raise BadData(f"{repository} lists no files", where=url)
    for number, each in enumerate(urls):
        own = each.replace(HF_ENDPOINT, endpoint, 1) if endpoint != HF_ENDPOINT else each  # a mirror lists the origin's addresses
        yield Shard(f"{task}/{split}.parquet" if len(urls) == 1 else f"{task}/{split}/{number:05d}.parquet", (own,))
