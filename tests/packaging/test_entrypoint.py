"""entrypoint.sh, run by a real bash with a program in python's place that shows what reached it."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "templates" / "entrypoint.sh"
# Like CANN's: reads variables that may be unset, and ends with a failing command.
SET_ENV = 'export ASCEND_HOME_PATH="{place}"\nexport LD_LIBRARY_PATH="{place}/lib64:$LD_LIBRARY_PATH$NEVER_SET"\n[ -d /nonexistent ]\n'


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_text('#!/bin/bash\necho "pid=$$"\necho "args=$*"\nenv\nif [ -n "$LEAVE_WITH" ]; then exit "$LEAVE_WITH"; fi\nif [ -n "$SLEEP" ]; then trap "exit 82" TERM; echo ready=1; sleep 60 & wait; fi\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def ascend(tmp_path: Path) -> Path:
    return tmp_path / "Ascend"


def provide(ascend: Path, *places: str) -> None:
    for place in places:
        (ascend / place).mkdir(parents=True)
        (ascend / place / "set_env.sh").write_text(SET_ENV.format(place=place) if "atb" not in place else "export ATB=1\n")


def start(program: Path, ascend: Path, *arguments: str, **env: str) -> dict[str, str]:
    environment = {"PATH": os.environ["PATH"], "NANOCHAT_PYTHON": str(program), "NANOCHAT_ASCEND_ROOT": str(ascend), **env}
    result = subprocess.run(["bash", str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, timeout=20, check=True)
    return dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)


def test_hands_over_to_the_launcher(program: Path, ascend: Path) -> None:
    assert start(program, ascend)["args"] == "-m nanochat launch"
    assert start(program, ascend, "chat", "--job-dir", "/x y")["args"] == "-m nanochat chat --job-dir /x y"


@pytest.mark.parametrize(
    ("places", "home"), [(("cann",), "cann"), (("ascend-toolkit",), "ascend-toolkit"), (("cann", "ascend-toolkit"), "cann"), (("ascend-toolkit", "nnal/atb"), "ascend-toolkit")],
)
def test_loads_cann_wherever_it_is(program: Path, ascend: Path, places: tuple[str, ...], home: str) -> None:
    provide(ascend, *places)
    seen = start(program, ascend)
    assert seen["ASCEND_HOME_PATH"] == home
    assert ("ATB" in seen) == ("nnal/atb" in places)


def test_platforms_idea_of_ranks_does_not_get_through(program: Path, ascend: Path) -> None:
    seen = start(program, ascend, RANK="1", LOCAL_RANK="0,1,2", WORLD_SIZE="16", LOCAL_WORLD_SIZE="8")
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"} & set(seen)


def test_worker_finds_its_place_from_volcano(program: Path, ascend: Path) -> None:
    seen = start(program, ascend, VC_TASK_INDEX="3", VC_WORKER_HOSTS="d20-worker-0.d20,d20-worker-1.d20", NANOCHAT_RETRY_COUNT="2", NANOCHAT_JOB_DIR="/output/jobs/d20")
    assert (seen["NANOCHAT_NODE_RANK"], seen["NANOCHAT_MASTER_ADDR"], seen["NANOCHAT_ATTEMPT"]) == ("3", "d20-worker-0.d20", "2")
    assert seen["ASCEND_PROCESS_LOG_PATH"] == "/output/jobs/d20/plog/worker3"


def test_old_volcano_leaves_the_attempt_to_the_launcher(program: Path, ascend: Path) -> None:
    assert "NANOCHAT_ATTEMPT" not in start(program, ascend, NANOCHAT_RETRY_COUNT="")


def test_without_volcano_it_is_the_only_worker(program: Path, ascend: Path) -> None:
    seen = start(program, ascend)
    assert (seen["NANOCHAT_NODE_RANK"], seen["NANOCHAT_MASTER_ADDR"]) == ("0", "127.0.0.1")


@pytest.mark.parametrize("code", [0, 65, 82, 137])
def test_exit_code_is_the_launchers(program: Path, ascend: Path, code: int) -> None:
    environment = {"PATH": os.environ["PATH"], "NANOCHAT_PYTHON": str(program), "LEAVE_WITH": str(code), "NANOCHAT_ASCEND_ROOT": str(ascend)}
    assert subprocess.run(["bash", str(SCRIPT)], env=environment, capture_output=True, timeout=20, check=False).returncode == code


def test_sigterm_reaches_the_launcher_itself(program: Path, ascend: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "NANOCHAT_PYTHON": str(program), "SLEEP": "1", "NANOCHAT_ASCEND_ROOT": str(ascend)}
    with subprocess.Popen(["bash", str(SCRIPT)], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"pid={process.pid}\n", "exec: the same process"
        while process.stdout.readline() != "ready=1\n":
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 82
        with contextlib.suppress(ProcessLookupError):  # its sleep, if it had begun
            os.killpg(process.pid, signal.SIGKILL)


def test_shell_finds_no_fault() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    subprocess.run(["sh", "-n", str(SCRIPT)], check=True)
