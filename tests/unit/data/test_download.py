"""Downloads against a server that drops, truncates, corrupts, redirects and rate-limits; and what is said when they fail."""

import hashlib
import io
import json
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_helpers import random_texts
from flaky_server import Answer, FlakyServer

from nanochat.contract import DataConfig, ExitCode
from nanochat.data import iter_texts, open_corpus, staging
from nanochat.data.staging import Progress, missing_shards, stage_data
from nanochat.data.transfer import DownloadFailed, Patience
from nanochat.errors import BadData, Interrupted, TrainerError

FAST = Patience(attempts=3, timeout_s=5.0, first_wait_s=0.01, longest_wait_s=0.05)


def parquet(number: int) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": random_texts(60, 400, seed=number)}), buffer, row_group_size=20)
    return buffer.getvalue()


FILES = {f"shard_{number:05d}.parquet": parquet(number) for number in (0, 1, 2, 6542)}
VAL = "shard_06542.parquet"


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    with FlakyServer(dict(FILES)).running() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield running


def climbmix(folder: Path, **more: object) -> DataConfig:
    return DataConfig.model_validate({"source": "climbmix", "dir": str(folder), "shards": 3, **more})


def stage(folder: Path, patience: Patience = FAST, **more: object) -> dict[str, object]:
    return stage_data(climbmix(folder, **more), folder, patience=patience)


def assert_complete(folder: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.glob("*.parquet")} == FILES
    assert not list(folder.glob("*.partial"))


def test_all_shards_arrive_and_are_used(server: FlakyServer, tmp_path: Path) -> None:
    seen: list[Progress] = []
    result = stage_data(climbmix(tmp_path), tmp_path, patience=FAST, workers=1, report=seen.append)
    assert_complete(tmp_path)
    assert result["fetched"] == 4 and result["validation"] == VAL and result["bytes_fetched"] == sum(map(len, FILES.values()))
    assert (seen[-1].done, seen[-1].total) == (4, 4)
    assert server.requests[0][0] == f"/datasets/karpathy/climbmix-400b-shuffle/resolve/main/{VAL}"  # what nothing works without comes first
    corpora = open_corpus(climbmix(tmp_path), 0, tmp_path)
    assert list(iter_texts(corpora.val)) == random_texts(60, 400, seed=6542)
    assert len(list(iter_texts(corpora.train))) == 180


def test_what_is_there_is_not_fetched_nor_read_again(server: FlakyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage(tmp_path)
    before = len(server.requests)
    monkeypatch.setattr(staging, "sha256_of", lambda path: pytest.fail("read again"))
    assert stage(tmp_path)["fetched"] == 0
    assert len(server.requests) == before


def test_a_connection_that_breaks_is_resumed_where_it_broke(server: FlakyServer, tmp_path: Path) -> None:
    server.rule = lambda name, n: Answer(drop_after=3000) if n < 2 else Answer()
    stage(tmp_path)
    assert_complete(tmp_path)
    ranges = {r for path, r, _ in server.requests if path.endswith(VAL)}
    assert ranges == {None, "bytes=3000-", "bytes=6000-"}


def test_a_line_that_breaks_often_but_moves_arrives(server: FlakyServer, tmp_path: Path) -> None:
    server.rule = lambda name, n: Answer(drop_after=2500)
    stage(tmp_path)
    assert_complete(tmp_path)


def test_a_partial_file_of_an_earlier_attempt_is_gone_on_from(server: FlakyServer, tmp_path: Path) -> None:
    (tmp_path / f"{VAL}.partial").write_bytes(FILES[VAL][:5000])
    assert stage(tmp_path)["bytes_fetched"] == sum(map(len, FILES.values()))  # taken up and fetched
    assert_complete(tmp_path)
    assert [r for path, r, _ in server.requests if path.endswith(VAL)] == ["bytes=5000-"]


@pytest.mark.parametrize("junk", [b"junk" * 1000, FILES["shard_00001.parquet"] * 9])
def test_a_partial_file_of_something_else_is_noticed_and_thrown_away(server: FlakyServer, tmp_path: Path, junk: bytes) -> None:
    (tmp_path / f"{VAL}.partial").write_bytes(junk)
    server.rule = lambda name, n: Answer(headers={"X-Linked-ETag": f'"{sha(FILES[name])}"'})
    stage(tmp_path)
    assert_complete(tmp_path)


def test_a_server_that_ignores_ranges_still_gives_the_right_file(server: FlakyServer, tmp_path: Path) -> None:
    (tmp_path / f"{VAL}.partial").write_bytes(FILES[VAL][:5000])
    server.rule = lambda name, n: Answer(ignore_range=True)
    stage(tmp_path)
    assert_complete(tmp_path)


def test_a_busy_server_is_asked_again_after_the_time_it_wants(server: FlakyServer, tmp_path: Path) -> None:
    server.rule = lambda name, n: Answer(429, {"Retry-After": "0"}) if n == 0 else Answer(503) if n == 1 else Answer()
    stage(tmp_path)
    assert_complete(tmp_path)


def test_a_corrupt_file_never_gets_its_name(server: FlakyServer, tmp_path: Path) -> None:
    server.rule = lambda name, n: Answer(corrupt=name == VAL, headers={"X-Linked-ETag": f'"{sha(FILES[name])}"'})
    with pytest.raises(DownloadFailed, match=rf"1 of 4 shards are missing \({VAL}\).*SHA-256") as caught:
        stage(tmp_path)
    assert caught.value.code is ExitCode.BAD_DATA
    assert not (tmp_path / VAL).exists() and not list(tmp_path.glob("*.partial"))


def test_a_file_corrupted_once_on_its_way_is_fetched_again(server: FlakyServer, tmp_path: Path) -> None:
    server.rule = lambda name, n: Answer(corrupt=n == 0, headers={"X-Linked-ETag": f'"{sha(FILES[name])}"'})
    stage(tmp_path)
    assert_complete(tmp_path)


def test_the_checksum_that_the_hub_sends_with_its_redirect_counts(server: FlakyServer, tmp_path: Path) -> None:
    def rule(name: str, n: int) -> Answer:
        if n % 2 == 0:
            return Answer(302, {"Location": f"{server.url}/storage/{name}", "X-Linked-ETag": f'"{sha(FILES[name])}"'})
        return Answer(corrupt=name == VAL)
    server.rule = rule
    with pytest.raises(DownloadFailed, match="SHA-256"):
        stage(tmp_path)


def test_a_token_is_for_the_hub_and_not_for_the_storage_behind_it(server: FlakyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    with FlakyServer(dict(FILES)).running() as storage:
        server.rule = lambda name, n: Answer(302, {"Location": f"{storage.url}/{name}"})
        stage(tmp_path, mirrors=[f"{storage.url}/nothing-here"])
        assert {authorization for _, _, authorization in storage.requests} == {None}
    storage.files.clear()
    with FlakyServer({}).running() as empty:
        with pytest.raises(DownloadFailed):
            stage(tmp_path / "b", mirrors=[empty.url])
        assert {authorization for _, _, authorization in empty.requests} == {None}
    assert {authorization for _, _, authorization in server.requests} == {"Bearer secret"}


@pytest.mark.parametrize(("mirror", "path"), [
    ("{url}/climbmix/", "/climbmix/shard_00000.parquet"),
    ("hf:{url}/hub", "/hub/datasets/karpathy/climbmix-400b-shuffle/resolve/main/shard_00000.parquet"),
])
def test_mirrors_come_before_the_origin(server: FlakyServer, tmp_path: Path, mirror: str, path: str) -> None:
    with FlakyServer(dict(FILES)).running() as near:
        stage(tmp_path, mirrors=[mirror.format(url=near.url)])
        assert path in [requested for requested, _, _ in near.requests]
    assert_complete(tmp_path)
    assert server.requests == []


def test_modelscope_is_asked_in_its_own_way(server: FlakyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanochat.data.manifest.MODELSCOPE_ENDPOINT", server.url)
    stage(tmp_path, mirrors=["modelscope:someone/climbmix"])
    assert_complete(tmp_path)
    assert "/api/v1/datasets/someone/climbmix/repo?Source=SDK&Revision=master&FilePath=shard_00000.parquet" in [p for p, _, _ in server.requests]


def test_a_proxy_is_asked_where_there_is_one(server: FlakyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("http_proxy", server.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    stage(tmp_path)
    assert_complete(tmp_path)
    assert {path.split("/datasets")[0] for path, _, _ in server.requests} == {"http://hub.invalid"}


def test_when_a_mirror_lacks_or_spoils_a_file_the_origin_has_it(server: FlakyServer, tmp_path: Path) -> None:
    login = Answer(body=b"<html>please log in</html>")
    with FlakyServer(dict(FILES), lambda name, n: Answer(404) if name == VAL else login).running() as near:
        stage(tmp_path, mirrors=[near.url])
    assert_complete(tmp_path)


def test_a_mirror_that_cannot_be_reached_is_passed_over(server: FlakyServer, tmp_path: Path) -> None:
    stage(tmp_path, mirrors=["http://127.0.0.1:9/none", (tmp_path / "no-such-folder").as_uri()])
    assert_complete(tmp_path)


def test_a_folder_can_be_a_mirror(server: FlakyServer, tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    for name, content in FILES.items():
        (tmp_path / "mounted" / name).write_bytes(content)
    stage(tmp_path / "here", mirrors=[(tmp_path / "mounted").as_uri()])
    assert_complete(tmp_path / "here")
    assert server.requests == []


@pytest.mark.parametrize(("answer", "code", "told"), [
    (Answer(404), ExitCode.BAD_DATA, "HTTP 404"), (Answer(403), ExitCode.BAD_DATA, "HF_TOKEN"), (Answer(500), ExitCode.NOT_READY, "HTTP 500"),
    (Answer(429), ExitCode.NOT_READY, "HTTP 429"), (Answer(drop_after=0), ExitCode.NOT_READY, "broke off"),
    (Answer(body=b"<html>"), ExitCode.BAD_DATA, "not a parquet file"),
])
def test_the_exit_code_says_whether_another_attempt_may_help(server: FlakyServer, tmp_path: Path, answer: Answer, code: ExitCode, told: str) -> None:
    server.rule = lambda name, n: answer
    with pytest.raises(DownloadFailed, match=told) as caught:
        stage(tmp_path)
    assert caught.value.code is code and "run.data.mirrors" in str(caught.value)
    assert "4 of 4 shards are missing (shard_00000.parquet … shard_00002.parquet, shard_06542.parquet)" in str(caught.value)


def test_one_missing_shard_of_many_fails_the_stage_and_keeps_the_others(server: FlakyServer, tmp_path: Path) -> None:
    server.rule = lambda name, n: Answer(500 if name == "shard_00001.parquet" else 200)
    with pytest.raises(DownloadFailed, match=r"1 of 4 shards are missing \(shard_00001.parquet\)"):
        stage(tmp_path)
    server.rule = lambda name, n: Answer()
    assert stage(tmp_path)["fetched"] == 1
    assert_complete(tmp_path)


def test_a_silent_server_is_given_up(server: FlakyServer, tmp_path: Path) -> None:
    release = threading.Event()
    server.rule = lambda name, n: (release.wait(20), Answer())[1]
    with pytest.raises(DownloadFailed, match="timed out"):
        stage(tmp_path, Patience(attempts=1, timeout_s=0.2, first_wait_s=0.01))
    release.set()


def test_files_come_at_the_same_time_but_not_all_at_once(server: FlakyServer, tmp_path: Path) -> None:
    meeting = threading.Barrier(2, timeout=20)
    server.rule = lambda name, n: (meeting.wait(), Answer())[1]
    stage_data(climbmix(tmp_path), tmp_path, patience=FAST, workers=2)
    assert server.most_at_once == 2


def test_offline_lists_what_is_missing_and_asks_nobody(server: FlakyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shard_00001.parquet").write_bytes(FILES["shard_00001.parquet"])
    (tmp_path / VAL).write_bytes(FILES[VAL][:-9])
    told = r"3 of 4 shards are missing or damaged: shard_00000.parquet, shard_00002.parquet, shard_06542.parquet"
    with pytest.raises(BadData, match=told):
        stage(tmp_path, offline=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadData, match=told):
        stage(tmp_path)
    assert server.requests == []
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    assert stage(tmp_path)["fetched"] == 0


def test_the_list_of_many_missing_shards_stays_readable(server: FlakyServer, tmp_path: Path) -> None:
    with pytest.raises(BadData) as caught:
        stage(tmp_path, offline=True, shards=170)
    assert "171 of 171" in str(caught.value) and "shard_00000.parquet … shard_00169.parquet, shard_06542.parquet" in str(caught.value)


def test_a_damaged_file_is_found_and_fetched_again(server: FlakyServer, tmp_path: Path) -> None:
    stage(tmp_path)
    path = tmp_path / "shard_00002.parquet"
    path.write_bytes(path.read_bytes()[:-50] + b"x" * 50)
    assert [shard.name for shard in missing_shards(climbmix(tmp_path), tmp_path)] == ["shard_00002.parquet"]
    assert stage(tmp_path)["fetched"] == 1
    assert_complete(tmp_path)


def test_a_shard_that_the_server_changed_since_is_refused(server: FlakyServer, tmp_path: Path) -> None:
    stage(tmp_path)
    (tmp_path / VAL).unlink()
    server.files[VAL] = parquet(99)
    with pytest.raises(DownloadFailed, match=r"it has to (have|be)"):
        stage(tmp_path)


def test_without_stage_data_the_loader_lists_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"4 of 4 shards are missing: .*put stage data before"):
        open_corpus(climbmix(tmp_path), 0, tmp_path)


def test_a_disk_that_is_too_small_is_refused_before_the_first_byte(server: FlakyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 10**6))  # type: ignore[attr-defined]
    with pytest.raises(BadData, match=r"171 shards need about 17\.1 GB, 0\.0 GB are free.*run\.data\.shards"):
        stage(tmp_path, shards=170)
    assert server.requests == []


def test_a_stop_leaves_partial_files_to_go_on_from(server: FlakyServer, tmp_path: Path) -> None:
    release = threading.Event()
    server.rule = lambda name, n: Answer(drop_after=3000) if n == 0 else (release.wait(20), Answer())[1]
    asked = []

    def check() -> None:
        asked.append(1)
        if len(list(tmp_path.glob("*.partial"))) >= 4:
            release.set()
            raise Interrupted("asked to stop")
    with pytest.raises(Interrupted):
        stage_data(climbmix(tmp_path), tmp_path, patience=FAST, check=check)
    assert stage(tmp_path)["shards"] == 4
    assert_complete(tmp_path)


def write_manifest(path: Path, record: object) -> DataConfig:
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return DataConfig(source="manifest", manifest=str(path), dir=str(path.parent / "data"))


def test_a_manifest_of_ones_own_is_fetched_and_its_last_shard_is_for_validation(server: FlakyServer, tmp_path: Path) -> None:
    entries = [{"url": f"{server.url}/x/{name}", "size": len(content), "sha256": sha(content).upper()} for name, content in FILES.items()]
    data = write_manifest(tmp_path / "m.json", {"shards": entries})
    assert stage_data(data, tmp_path, patience=FAST)["validation"] == VAL
    assert len(open_corpus(data, 0, tmp_path).train.block_sizes) == 9
    lines = write_manifest(tmp_path / "m.jsonl", "".join(json.dumps({**e, "split": "val" if i == 0 else "train"}) + "\n" for i, e in enumerate(entries)))
    assert stage_data(lines, tmp_path, patience=FAST) | {"folder": ""} == {
        "shards": 4, "fetched": 0, "bytes_fetched": 0, "validation": "shard_00000.parquet", "folder": "",
    }


def test_a_manifests_size_and_checksum_are_held_to(server: FlakyServer, tmp_path: Path) -> None:
    good = {"url": f"{server.url}/shard_00000.parquet"}
    for wrong, told in [({"sha256": "0" * 64}, "SHA-256 is"), ({"size": 17}, "it has to have 17")]:
        data = write_manifest(tmp_path / "m.json", [good, {"url": f"{server.url}/shard_00001.parquet", **wrong}])
        with pytest.raises(DownloadFailed, match=told):
            stage_data(data, tmp_path, patience=FAST)


GOOD = {"url": "https://example.org/a.parquet"}


@pytest.mark.parametrize(("record", "told"), [
    ("", "0 shards"), ([], "0 shards"), ([GOOD], "1 shards"), ("nonsense", r"m\.json:1: neither JSON"), ("[" * 100_000, r"m\.json:1: neither JSON"),
    ([GOOD, GOOD], "two shards are called 'a.parquet'"),
    ([GOOD, {}], "shard 2: needs a url"), ([GOOD, 5], "shard 2: needs a url"), ([GOOD, {"url": "ftp://x/b.parquet"}], "not http"),
    ([GOOD, {"url": "https://x/b.txt"}], "not the plain name"), ([GOOD, {**GOOD, "name": "../b.parquet"}], "not the plain name"),
    ([GOOD, {**GOOD, "name": "b.parquet", "size": "5"}], "size '5'"), ([GOOD, {**GOOD, "name": "b.parquet", "sha256": "abc"}], "64 hexadecimal"),
    ([GOOD, {**GOOD, "name": "b.parquet", "split": "test"}], "neither train nor val"), ([GOOD, {**GOOD, "sha265": "x"}], "unknown key 'sha265'"),
    ([{**GOOD, "split": "val"}, {"url": "https://x/b.parquet", "split": "val"}], "every shard is for validation"),
])
def test_a_wrong_manifest_is_refused_with_its_entry(tmp_path: Path, record: object, told: str) -> None:
    with pytest.raises(BadData, match=told):
        stage_data(write_manifest(tmp_path / "m.json", record), tmp_path)


@pytest.mark.parametrize("data", [
    {"source": "manifest"}, {"source": "climbmix", "mirrors": ["nonsense"]}, {"source": "manifest", "manifest": "/none/such.json"},
])
def test_wrong_settings_are_refused_by_name(tmp_path: Path, data: dict) -> None:
    with pytest.raises(TrainerError, match=r"run\.data|cannot be read"):
        stage_data(DataConfig.model_validate({**data, "dir": str(tmp_path)}), tmp_path)
