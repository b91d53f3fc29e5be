"""Nodes with different software stop before their first collective, each rank naming who differs. Real launchers on loopback."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launchers import SECONDS, Nodes
from loopback import free_port

from nanochat.agreement import agree, software
from nanochat.contract import ExitCode, RunConfig, RunFile, World, layout
from nanochat.errors import BadConfig
from nanochat.peers import Peers
from nanochat.verdict import Verdict


def distribution(folder: Path, version: str) -> Path:
    """A folder for PYTHONPATH in which torch_npu of this version is installed, as far as its metadata say."""
    info = folder / f"torch_npu-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {version}\n")
    return folder


def toolkit(folder: Path, version: str) -> Path:
    """A folder that looks like CANN's toolkit of this version."""
    place = folder / "aarch64-linux"
    place.mkdir(parents=True)
    (place / "ascend_toolkit_install.info").write_text(f"package_name=Ascend-cann-toolkit\nversion={version}\n")
    return folder


def node(job: Path, number: int, port: int, python_path: Path, home: Path) -> subprocess.Popen[str]:
    env = {
        **os.environ, layout.ENV_JOB_DIR: str(job), layout.ENV_NODE_RANK: str(number), layout.ENV_MASTER_PORT: str(port), layout.ENV_MASTER_ADDR: "127.0.0.1",
        "PYTHONPATH": f"{python_path}:{os.environ.get('PYTHONPATH', '')}", "ASCEND_HOME_PATH": str(home),
    }
    return subprocess.Popen([sys.executable, "-m", "nanochat", "launch"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    """A job of two nodes with two ranks each, on CPU."""
    folder = tmp_path / "job"
    folder.mkdir()
    run = RunFile(job="job", run=RunConfig(stages=["pretrain"]), world=World(nodes=2, ranks_per_node=2, device="cpu"), start_timeout_s=60)
    layout.run_file(folder).write_text(run.model_dump_json())
    yield folder


def test_nodes_with_other_versions_are_named_by_every_rank(job: Path, tmp_path: Path) -> None:
    port = free_port()
    both = [
        node(job, 0, port, distribution(tmp_path / "a", "2.12.0"), toolkit(tmp_path / "cann-a", "9.1.0")),
        node(job, 1, port, distribution(tmp_path / "b", "2.11.0"), toolkit(tmp_path / "cann-b", "8.5.0")),
    ]
    said = [process.communicate(timeout=SECONDS)[0] for process in both]
    assert [process.returncode for process in both] == [ExitCode.BAD_CONFIG] * 2, said
    verdict = Verdict.from_json(layout.verdict_file(job, 0).read_text())
    assert "torch_npu 2.11.0 on ranks 2, 3 (node 1), 2.12.0 on the others" in verdict.message
    assert "CANN 8.5.0 on ranks 2, 3 (node 1), 9.1.0 on the others" in verdict.message
    assert "name it by digest" in (verdict.hint or "")
    for rank in range(4):
        assert "the ranks run different software" in layout.rank_log(job, 0, rank).read_text(), "no rank waits in a collective"


def test_a_node_whose_clock_is_off_is_named(job: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "sitecustomize.py").write_text("import time\nright = time.time\ntime.time = lambda: right() + 300\n")
    right = tmp_path / "right"
    right.mkdir()
    port, home = free_port(), toolkit(tmp_path / "cann", "9.1.0")
    both = [node(job, 0, port, right, home), node(job, 1, port, wrong, home)]
    said = [process.communicate(timeout=SECONDS)[0] for process in both]
    assert [process.returncode for process in both] == [ExitCode.BAD_CONFIG] * 2, said
    message = Verdict.from_json(layout.verdict_file(job, 0).read_text()).message
    assert re.search(r"clocks are (2[4-9]\d|3[0-5]\d) s apart: ranks 2, 3 \(node 1\)", message), message  # 300, less or more what a busy computer delays


def test_a_rank_that_never_comes_to_the_smoke_test_is_named(tmp_path: Path) -> None:
    env = {"STAND_IN": "done", "FAULT": "stuck_before_the_smoke_test", "NANOCHAT_SMOKE": "1"}
    nodes = Nodes(tmp_path / "job", RunConfig(stages=["pretrain"]), 2, 2, env, silence_timeout_s=600)
    try:
        assert nodes.wait() == [ExitCode.DEVICE_LOST] * 2, nodes.output()
    finally:
        nodes.end()
    assert nodes.verdict()["rank"] == 2
    assert "rank 2 silent" in nodes.verdict()["message"]


class Told(Peers):
    """Ranks whose words are given."""

    def __init__(self, told: list[dict[str, str]], per_node: int = 1, clocks: list[float] | None = None) -> None:
        super().__init__(0, 1, None, per_node)
        self.told = [{"software": one, "clock": clock} for one, clock in zip(told, clocks or [0.0] * len(told), strict=True)]

    def gather(self, value):  # type: ignore[no-untyped-def]
        """What all said."""
        return self.told


def test_most_ranks_are_right_and_the_rest_is_named() -> None:
    versions = ["2.12.0"] * 16
    versions[3] = "2.11.0"
    with pytest.raises(BadConfig, match=r"torch 2\.11\.0 on rank 3 \(node 0\), 2\.12\.0 on the others"):
        agree(Told([{"torch": version} for version in versions], per_node=8))


def test_what_only_some_have_is_a_difference_too() -> None:
    with pytest.raises(BadConfig, match=r"CANN none on rank 1 \(node 1\), 9\.1\.0 on the other$|CANN none on rank 1 \(node 1\), 9\.1\.0 on the other "):
        agree(Told([{"CANN": "9.1.0"}, {}]))


def test_a_clock_that_is_slow_and_one_that_is_a_little_off() -> None:
    agree(Told([{}] * 4, clocks=[100.0, 101.0, 159.0, 100.5]))
    with pytest.raises(BadConfig, match=r"clocks are 3600 s apart: rank 0 \(node 0\)"):
        agree(Told([{}] * 4, per_node=2, clocks=[0.0, 3600.0, 3600.0, 3600.0]))


def test_equal_software_says_nothing() -> None:
    agree(Told([{"torch": "2.12.0", "CANN": "9.1.0"}] * 1000, per_node=8))
    agree(Peers())


@pytest.mark.parametrize(("content", "version"), [("version=9.1.0\n", "9.1.0"), ("junk\xff", "cann-9.0.1"), (None, "cann-9.0.1")])
def test_version_of_cann(tmp_path: Path, content: str | None, version: str) -> None:
    folder = tmp_path / "cann-9.0.1"
    (folder / "x86_64-linux").mkdir(parents=True)
    if content is not None:
        (folder / "x86_64-linux" / "ascend_toolkit_install.info").write_bytes(content.encode("latin-1"))
    (tmp_path / "latest").symlink_to(folder)
    assert software({"ASCEND_TOOLKIT_HOME": str(tmp_path / "latest")})["CANN"] == version
    assert software({})["CANN"] == "none"
