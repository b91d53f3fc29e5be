"""Checks at start: each planted fault is caught and named, with its exit code, before a rank starts."""

import errno
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanochat import ledger
from nanochat.contract import ExitCode, RunConfig, RunFile, World
from nanochat.errors import BadConfig, BadData, DeviceLost, NotReady, TrainerError
from nanochat.launch import checks
from nanochat.launch.checks import (
    busy,
    cann,
    data_folder,
    devices,
    hccl_settings,
    memory_disk,
    output_folder,
    peers,
    user,
    versions,
)
from nanochat.launch.command import Launch
from nanochat.launch.settings import LaunchSettings


def settings_of(folder: Path, **changes: object) -> LaunchSettings:
    values: dict[str, object] = {
        "job_dir": folder, "run_file": folder / "run.json", "nodes": 1, "node_rank": 0, "ranks_per_node": 8, "master_addr": "127.0.0.1", "master_port": 29500, "attempt": 0,
    }
    return LaunchSettings(**{**values, **changes})  # type: ignore[arg-type]


def run_of(device: str = "npu", **run: object) -> RunFile:
    return RunFile(job="job", run=RunConfig.model_validate({"stages": ["pretrain"], **run}), world=World.model_validate({"ranks_per_node": 8, "device": device}))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The root of a healthy node: eight NPUs, driver 25.0.0, CANN, two NICs."""
    for name in [f"davinci{number}" for number in range(8)] + ["davinci_manager", "devmm_svm", "hisi_hdc"]:
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    (tmp_path / "usr/local/Ascend/driver").mkdir(parents=True)
    (tmp_path / "usr/local/Ascend/driver/version.info").write_text("Version=25.0.0\nascendhal_version=7.35\n")
    (tmp_path / "usr/local/Ascend/cann").mkdir()
    for nic in ("lo", "eth0"):
        (tmp_path / "sys/class/net" / nic).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def healthy_env(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("ASCEND_HOME_PATH", "/usr/local/Ascend/cann")
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    return monkeypatch


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_healthy_node_passes(node: Path, healthy_env: pytest.MonkeyPatch) -> None:
    settings, run = settings_of(node), run_of()
    devices.check(settings, run, node)
    cann.check(settings, run, node)
    hccl_settings.check(settings, run, {"HCCL_CONNECT_TIMEOUT": "1200", "HCCL_SOCKET_IFNAME": "=eth0", "HCCL_IF_IP": "127.0.0.1", "HCCL_RDMA_TC": "132"}, node)


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (lambda dev: [path.unlink() for path in dev.glob("davinci[0-9]*")], "no NPU in this container"),
        (lambda dev: (dev / "hisi_hdc").unlink(), "hisi_hdc missing"),
        (lambda dev: (dev / "davinci7").unlink(), "7 NPUs .* for 8 ranks"),
    ],
    ids=["no NPU", "no driver node", "one NPU short"],
)
def test_missing_devices(node: Path, healthy_env: pytest.MonkeyPatch, plant: Callable[[Path], object], message: str) -> None:
    plant(node / "dev")
    with pytest.raises(DeviceLost, match=message) as error:
        devices.check(settings_of(node), run_of(), node)
    assert error.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_devices_of_another_user(node: Path, healthy_env: pytest.MonkeyPatch) -> None:
    for path in (node / "dev").iterdir():
        path.chmod(0o660)
    child = os.fork()
    if child == 0:
        os.setgid(4242)
        os.setuid(4242)
        os._exit(0 if all(not os.access(node / "dev" / f"davinci{n}", os.R_OK) for n in range(8)) else 1)
    os.waitpid(child, 0)
    healthy_env.setattr(devices.os, "access", lambda path, mode: "davinci3" not in str(path))
    with pytest.raises(BadConfig, match="may not open NPU 3"):
        devices.check(settings_of(node), run_of(), node)


@pytest.mark.parametrize("mask", ["3,1,2", "0,8", "0,0", "a,b", "0,"])
def test_mask_that_hides_npus_without_a_word(node: Path, healthy_env: pytest.MonkeyPatch, mask: str) -> None:
    healthy_env.setenv("ASCEND_RT_VISIBLE_DEVICES", mask)
    with pytest.raises(BadConfig, match="ascending list") as error:
        devices.check(settings_of(node), run_of(), node)
    assert error.value.where == "ASCEND_RT_VISIBLE_DEVICES"


def test_npu_that_is_held_by_another_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "npu-smi", "echo 'dcmi model initialized failed, because the device is used. ret is -8005'; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(DeviceLost, match=r"held by another container: .*-8005"):
        busy.check(settings_of(tmp_path), run_of())


def test_npu_smi_that_is_content_or_cannot_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(busy, "TIMEOUT_S", 0.2)
    for text in ("echo all fine", "echo broken >&2; exit 3", "exec sleep 5"):
        program(tmp_path, "npu-smi", text)
        busy.check(settings_of(tmp_path), run_of())


def test_cann_environment_not_loaded(node: Path, healthy_env: pytest.MonkeyPatch) -> None:
    healthy_env.delenv("ASCEND_HOME_PATH")
    healthy_env.delenv("ASCEND_TOOLKIT_HOME", raising=False)
    with pytest.raises(BadConfig, match="not loaded"):
        cann.check(settings_of(node), run_of(), node)


def test_cann_that_is_not_in_the_image(node: Path, healthy_env: pytest.MonkeyPatch) -> None:
    healthy_env.setenv("ASCEND_HOME_PATH", "/usr/local/Ascend/cann-9.1.0")
    with pytest.raises(BadConfig, match="not in this image"):
        cann.check(settings_of(node), run_of(), node)


def test_driver_too_old(node: Path, healthy_env: pytest.MonkeyPatch) -> None:
    (node / "usr/local/Ascend/driver/version.info").write_text("Version=22.0.4\n")
    with pytest.raises(BadConfig, match=r"driver 22\.0\.4 knows no expandable segments"):
        cann.check(settings_of(node), run_of(), node)
    healthy_env.setenv("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:False")
    cann.check(settings_of(node), run_of(), node)


@pytest.mark.parametrize("text", ["", "junk\xff", "Version=\n", "Version=abc\n"])
def test_driver_file_of_any_shape_is_survived(node: Path, text: str) -> None:
    (node / "usr/local/Ascend/driver/version.info").write_bytes(text.encode("latin-1"))
    assert cann.driver_version(node) is None


@pytest.mark.parametrize(("torch", "npu", "right"), [("2.12.0+cpu", "2.12.0", True), ("2.9.0", "2.9.0.post6", True), ("2.12.0", "2.11.0", False), ("2.9.1", "2.9.0.post2", False), ("2.12.0", "2.12.0rc1", True)])
def test_torch_npu_fits_its_own_torch_only(torch: str, npu: str, right: bool) -> None:
    assert versions.fits(torch, npu) is right


@pytest.mark.parametrize(
    ("installed", "message"),
    [({"torch": "2.12.0"}, "not installed: torch_npu"), ({"torch": "2.12.0", "torch_npu": "2.11.0"}, "does not load beside torch"),
     ({"torch": "2.12.0+cu130", "torch_npu": "2.12.0"}, "CUDA build"), ({"torch": "2.12.0", "torch_npu": "2.12.0", "nvidia-cuda-runtime": "13"}, "CUDA build")],
)
def test_versions_that_do_not_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], message: str) -> None:
    monkeypatch.setattr(versions, "_installed", installed.get)
    with pytest.raises(BadConfig, match=message):
        versions.check(settings_of(tmp_path), run_of())


@pytest.mark.parametrize(("number", "message"), [(4242, "sees no NPU"), (1000, "no entry in /etc/passwd")])
def test_user_to_whom_the_driver_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(user.os, "getuid", lambda: number)
    monkeypatch.setattr(user.pwd, "getpwuid", nobody)
    with pytest.raises(BadConfig, match=message):
        user.check(settings_of(tmp_path), run_of())


def test_shared_memory_of_64_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.statvfs(tmp_path)
    small = os.statvfs_result((4096, 4096, 16384, 16384, 16384, *list(found)[5:]))
    monkeypatch.setattr(memory_disk.os, "statvfs", lambda _: small)
    with pytest.raises(BadConfig, match="64 MiB for 8 ranks"):
        memory_disk.check_shm(settings_of(tmp_path), run_of(), tmp_path)
    memory_disk.check_shm(settings_of(tmp_path), run_of("cpu"), tmp_path)


def test_disk_without_room_for_one_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.statvfs(tmp_path)
    full = os.statvfs_result((4096, 4096, 1000, 10, 10, *list(found)[5:]))
    monkeypatch.setattr(memory_disk.os, "statvfs", lambda _: full)
    with pytest.raises(BadConfig, match=r"0\.04 MB free, one checkpoint takes up to 10\.8 GB"):
        memory_disk.check_disk(settings_of(tmp_path), run_of(model={"depth": 20}))
    small = {"model": {"depth": 2, "aspect_ratio": 16, "head_dim": 16}, "tokenizer": {"vocab_size": 300}}
    with pytest.raises(BadConfig, match=r"0\.04 MB free, one checkpoint takes up to 0\.\d\d MB"):
        memory_disk.check_disk(settings_of(tmp_path), run_of(**small))


def test_too_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_disk.resource, "getrlimit", lambda _: (256, 512))
    with pytest.raises(BadConfig, match="512 open files"):
        memory_disk.check_files(settings_of(tmp_path), run_of())


def test_data_folder_with_a_name_that_no_folder_can_have(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="cannot read it: File name too long"):
        data_folder.check(settings_of(tmp_path), run_of("cpu", data={"source": "folder", "dir": str(tmp_path / ("x" * 300))}))


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, ExitCode.BAD_CONFIG), (errno.ESTALE, ExitCode.NOT_READY), (errno.EIO, ExitCode.NOT_READY)])
def test_a_folder_that_goes_before_any_rank_runs_is_a_sentence_and_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, code: ExitCode
) -> None:
    """The file is named, whatever it is; and a file server may be back at the next attempt."""

    def gone(job: Path) -> list[ledger.Attempt]:
        raise OSError(number, os.strerror(number), str(job / "ledger.json"))

    monkeypatch.setattr(ledger, "read", gone)
    assert Launch(settings_of(tmp_path), run_of("cpu")).run() == code
    assert capsys.readouterr().err == f"launch: {tmp_path}/ledger.json: cannot be used: {os.strerror(number)}\n"


def test_data_folder_missing(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no such folder"):
        data_folder.check(settings_of(tmp_path), run_of("cpu", data={"source": "folder", "dir": str(tmp_path / "corpus")}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("HCCL_CONNECT_TIMEOUT", "60"), ("HCCL_CONNECT_TIMEOUT", "1200s"), ("HCCL_RDMA_TC", "130"), ("HCCL_RDMA_SL", "8"), ("HCCL_BUFFSIZE", "0"),
     ("HCCL_IF_BASE_PORT", "65530"), ("HCCL_RDMA_TIMEOUT", "21"), ("HCCL_IF_IP", "not-an-address"), ("HCCL_IF_IP", "192.0.2.77"), ("HCCL_SOCKET_IFNAME", "=eth1")],
)
def test_hccl_values_out_of_range(node: Path, name: str, value: str) -> None:
    with pytest.raises(BadConfig) as error:
        hccl_settings.check(settings_of(node), run_of(), {name: value}, node)
    assert error.value.where == name


def test_workers_without_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VC_WORKER_HOSTS", "a-0.a,a-1.a,a-2.a")
    moments = iter([0.0, 1.0, 700.0])
    monkeypatch.setattr(peers.time, "monotonic", lambda: next(moments))
    monkeypatch.setattr(peers.time, "sleep", lambda _: None)

    def resolve(host: str) -> str:
        if host == "a-2.a":
            raise socket.gaierror
        return "10.0.0.1"

    with pytest.raises(NotReady, match=r"1 of 3 workers have no address: a-2\.a"):
        peers.check_names(settings_of(tmp_path, nodes=3), run_of(), resolve)


def test_names_that_resolve_late_are_waited_for_with_growing_pauses_and_named_each_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VC_WORKER_HOSTS", "a-0.a,a-1.a,a-2.a")
    pauses: list[float] = []
    monkeypatch.setattr(peers.time, "monotonic", lambda: sum(pauses))
    monkeypatch.setattr(peers.time, "sleep", pauses.append)
    asked: dict[str, int] = {}

    def resolve(host: str) -> str:
        asked[host] = asked.get(host, 0) + 1
        if host == "a-1.a" and asked[host] <= 14:  # as after a negative answer that the resolver remembers
            raise socket.gaierror
        return "10.0.0.1"

    peers.check_names(settings_of(tmp_path, nodes=3), run_of(), resolve)
    assert pauses[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert max(pauses) == 10.0
    assert asked == {"a-0.a": 1, "a-1.a": 15, "a-2.a": 1}  # what is known is not asked for again
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("launch: waiting")]
    assert told[0].endswith("1 of 3 workers have no address: a-1.a")
    assert len(told) == 1


def test_clock_that_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(peers.time, "time", lambda: now + 300)
    with pytest.raises(BadConfig, match=r"300 s apart|299 s apart"):
        peers.check_clock(settings_of(tmp_path), run_of())
    assert list(tmp_path.iterdir()) == []


def test_table_shows_everything_and_the_first_failure_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "VC_WORKER_HOSTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HCCL_RDMA_SL", "9")
    with pytest.raises(TrainerError) as error:
        checks.run_checks(settings_of(tmp_path), run_of())
    out, err = capsys.readouterr()
    event = json.loads(out)
    failed = {entry["check"]: entry["code"] for entry in event["checks"] if not entry["ok"]}
    assert event["event"] == "checks"
    assert failed["NPUs"] == ExitCode.DEVICE_LOST
    assert {"CANN and driver", "HCCL settings"} <= set(failed)
    assert str(error.value) in err
    assert "workers' names" not in err, "nobody waits for names on a node that is broken"


def test_a_cpu_job_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks.run_checks(settings_of(tmp_path, ranks_per_node=1), run_of("cpu", model={"depth": 2}))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("variable", "value", "driver", "feature"),
    [("PYTORCH_NPU_ALLOC_CONF", "page_size:1g", "24.1.0.3", "pages of 1 GB"), ("HCCL_NPU_SOCKET_PORT_RANGE", "auto", "24.1.rc3", "ranges of NPU ports")],
)
def test_driver_too_old_for_what_is_switched_on(node: Path, healthy_env: pytest.MonkeyPatch, variable: str, value: str, driver: str, feature: str) -> None:
    healthy_env.setenv(variable, value)
    cann.check(settings_of(node), run_of(), node)
    (node / "usr/local/Ascend/driver/version.info").write_text("Version=25.0.RC1\n")
    cann.check(settings_of(node), run_of(), node)
    (node / "usr/local/Ascend/driver/version.info").write_text(f"Version={driver}\n")
    with pytest.raises(BadConfig, match=feature) as error:
        cann.check(settings_of(node), run_of(), node)
    assert error.value.where == variable


def _as_user(number: int, work: Callable[[], None]) -> str:
    """What a piece of work raises when another user does it, in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(number)
        os.setuid(number)
        try:
            work()
            os.write(writer, b"nothing")
        except TrainerError as error:
            os.write(writer, f"{int(error.code)} {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        return pipe.read().decode()


@pytest.fixture
def passable(tmp_path: Path) -> Iterator[Path]:
    """A folder that other users get to, until the test is over."""
    modes = {parent: parent.stat().st_mode for parent in (tmp_path, *tmp_path.parents) if not parent.stat().st_mode & 0o001}
    for parent, mode in modes.items():
        parent.chmod(mode | 0o011)
    yield tmp_path
    for parent, mode in modes.items():
        parent.chmod(mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_folders_that_this_user_may_not_use(passable: Path) -> None:
    """Real modes and a real user: data that cannot be read (the folder, then a file in it), and an output that cannot be written."""
    tmp_path = passable
    corpus, job = tmp_path / "corpus", tmp_path / "job"
    corpus.mkdir(mode=0o755)
    job.mkdir(mode=0o755)
    (corpus / "shard.txt").write_text("text")
    run = run_of("cpu", data={"source": "folder", "dir": str(corpus)})
    (corpus / "shard.txt").chmod(0o600)
    found = _as_user(4242, lambda: data_folder.check(settings_of(job), run))
    assert found.startswith(f"{int(ExitCode.BAD_DATA)} ") and "shard.txt: user 4242 cannot read it: Permission denied" in found
    (corpus / "shard.txt").chmod(0o644)
    for number in range(20):  # somebody's own, which training passes over; so many that some come before it
        (corpus / f".lock{number}").touch(mode=0o600)
    assert _as_user(4242, lambda: data_folder.check(settings_of(job), run)) == "nothing"
    corpus.chmod(0o700)
    assert "corpus: user 4242 cannot read it" in _as_user(4242, lambda: data_folder.check(settings_of(job), run))
    found = _as_user(4242, lambda: output_folder.check(settings_of(job), run))
    assert found.startswith(f"{int(ExitCode.BAD_CONFIG)} ") and "the job's folder cannot be written: Permission denied" in found
    assert list(job.iterdir()) == []


def test_output_folder_on_something_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadConfig, match="the job's folder cannot be written: Not a directory"):
        output_folder.check(settings_of(tmp_path / "file" / "job"), run_of("cpu"))


# Each fault is planted on an otherwise healthy node and has to be the one and only thing that the launcher's own round of checks finds.
FAULTS: dict[str, tuple[str, ExitCode, str, Callable[[Path, pytest.MonkeyPatch], object]]] = {
    "no NPUs": ("NPUs", ExitCode.DEVICE_LOST, "no NPU in this container", lambda root, m: [path.unlink() for path in (root / "dev").glob("davinci[0-9]*")]),
    "no driver node": ("NPUs", ExitCode.DEVICE_LOST, "devmm_svm missing", lambda root, m: (root / "dev/devmm_svm").unlink()),
    "one NPU short": ("NPUs", ExitCode.DEVICE_LOST, "7 NPUs", lambda root, m: (root / "dev/davinci3").unlink()),
    "mask hides NPUs": ("NPUs", ExitCode.BAD_CONFIG, "ascending list", lambda root, m: m.setenv("ASCEND_RT_VISIBLE_DEVICES", "1,0")),
    "NPU held by another container": ("NPUs free", ExitCode.DEVICE_LOST, "held by another container", lambda root, m: program(root / "bin", "npu-smi", "echo 'ret is -8005'; exit 1")),
    "CANN not loaded": ("CANN and driver", ExitCode.BAD_CONFIG, "not loaded", lambda root, m: m.delenv("ASCEND_HOME_PATH")),
    "driver too old": ("CANN and driver", ExitCode.BAD_CONFIG, "driver 22.0.4", lambda root, m: (root / "usr/local/Ascend/driver/version.info").write_text("Version=22.0.4\n")),
    "torch of another version": ("torch and torch_npu", ExitCode.BAD_CONFIG, "does not load beside", lambda root, m: m.setattr(versions, "_installed", {"torch": "2.11.0", "torch_npu": "2.12.0"}.get)),
    "CUDA build of torch": ("torch and torch_npu", ExitCode.BAD_CONFIG, "CUDA build", lambda root, m: m.setattr(versions, "_installed", {"torch": "2.12.0+cu130", "torch_npu": "2.12.0"}.get)),
    "user without an entry": ("user", ExitCode.BAD_CONFIG, "/etc/passwd", lambda root, m: m.setattr(user.pwd, "getpwuid", lambda number: {}[number])),
    "user who may open nothing": ("user", ExitCode.BAD_CONFIG, "sees no NPU", lambda root, m: m.setattr(user.os, "getuid", lambda: 4242)),
    "small /dev/shm": ("shared memory", ExitCode.BAD_CONFIG, "64 MiB", lambda root, m: m.setattr(memory_disk.check_shm, "__defaults__", (_Small(root),))),
    "disk full": ("disk", ExitCode.BAD_CONFIG, "one checkpoint takes", lambda root, m: m.setattr(memory_disk, "BYTES_PER_PARAMETER", 1 << 60)),
    "few open files": ("open files", ExitCode.BAD_CONFIG, "512 open files", lambda root, m: m.setattr(memory_disk.resource, "getrlimit", lambda _: (256, 512))),
    "data missing": ("data folder", ExitCode.BAD_DATA, "no such folder", lambda root, m: (root / "corpus").rename(root / "elsewhere")),
    "HCCL value out of range": ("HCCL settings", ExitCode.BAD_CONFIG, "HCCL_RDMA_TC", lambda root, m: m.setenv("HCCL_RDMA_TC", "130")),
    "NIC that is not there": ("HCCL settings", ExitCode.BAD_CONFIG, "no NIC fits", lambda root, m: m.setenv("HCCL_SOCKET_IFNAME", "=eth7")),
    "clock": ("clock", ExitCode.BAD_CONFIG, "apart", lambda root, m: m.setenv("PLANT_CLOCK", "300")),
    "worker without an address": ("workers' names", ExitCode.NOT_READY, "have no address", lambda root, m: m.setenv("VC_WORKER_HOSTS", "localhost,nowhere.invalid")),
}


class _Small(type(Path())):  # type: ignore[misc]
    """A /dev/shm of 64 MiB, as Kubernetes gives it: a real mount would need rights that a test may not have."""


@pytest.fixture
def whole_node(node: Path, healthy_env: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A healthy node for all checks together, as `run_checks` sees it."""
    for check in (devices.check, cann.check):
        monkeypatch.setattr(check, "__defaults__", (node,))
    monkeypatch.setattr(hccl_settings.check, "__defaults__", (None, node))
    monkeypatch.setattr(versions, "_installed", {"torch": "2.12.0", "torch_npu": "2.12.0"}.get)
    (node / "bin").mkdir()
    program(node / "bin", "npu-smi", "echo fine")
    monkeypatch.setenv("PATH", f"{node / 'bin'}:{os.environ['PATH']}")
    for name in [name for name in os.environ if name.startswith("HCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("VC_WORKER_HOSTS", "localhost,127.0.0.1")
    monkeypatch.delenv("PLANT_CLOCK", raising=False)
    (node / "corpus").mkdir()
    (node / "corpus" / "shard.txt").write_text("text")
    (node / "job").mkdir()
    real_statvfs, real_time = os.statvfs, time.time

    def statvfs(place: object) -> os.statvfs_result:
        found = real_statvfs(str(place))
        size = 16_384 if isinstance(place, _Small) else 1 << 30
        return os.statvfs_result((4096, 4096, size, size, size, *list(found)[5:]))

    monkeypatch.setattr(memory_disk.os, "statvfs", statvfs)
    monkeypatch.setattr(peers.time, "time", lambda: real_time() + float(os.environ.get("PLANT_CLOCK", "0")))
    return node


def _run_all(root: Path) -> None:
    run = run_of("npu", data={"source": "folder", "dir": str(root / "corpus")})
    run = run.model_copy(update={"start_timeout_s": 0.0})
    checks.run_checks(settings_of(root / "job", nodes=2), run)


def test_all_checks_are_content_with_a_healthy_node(whole_node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run_all(whole_node)
    event = json.loads(capsys.readouterr().out)
    assert all(entry["ok"] for entry in event["checks"])
    assert len(event["checks"]) == len(checks.CHECKS)
    print(f"{len(checks.CHECKS)} checks, {event['took_s']} s")


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_caught_and_named(whole_node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    check, code, says, plant = FAULTS[fault]
    plant(whole_node, monkeypatch)
    with pytest.raises(TrainerError) as error:
        _run_all(whole_node)
    out, err = capsys.readouterr()
    failed = [entry for entry in json.loads(out)["checks"] if not entry["ok"]]
    assert [(entry["check"], entry["code"]) for entry in failed] == [(check, int(code))]
    assert says in failed[0]["message"]
    assert error.value.hint, "what to do about it"
    assert check in err and says in err, "in the table, too"
