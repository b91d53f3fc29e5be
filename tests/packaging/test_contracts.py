"""Who may do what (design section 2), read from the source: what import-linter's contracts cannot say."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
CLI = sorted((ROOT / "cli" / "nanochat_npu").rglob("*.py"))
TRAINER = sorted(path for path in (ROOT / "nanochat").rglob("*.py") if "contract" not in path.parts)
ERRORS = {node.name for node in ast.parse((ROOT / "cli/nanochat_npu/errors.py").read_text()).body if isinstance(node, ast.ClassDef)}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _walk(paths: list[Path]) -> Iterator[tuple[str, ast.AST]]:
    for path in paths:
        name = str(path.relative_to(ROOT))
        for node in ast.walk(_tree(path)):
            yield name, node


def _imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    return {(node.module or "").split(".")[0]} if isinstance(node, ast.ImportFrom) and node.level == 0 else set()


def _names(node: ast.AST | None) -> set[str]:
    return {inner.id if isinstance(inner, ast.Name) else inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Name | ast.Attribute)} if node else set()


def test_only_kube_imports_the_kubernetes_client() -> None:
    found = {name for name, node in _walk(CLI + TRAINER) if "kubernetes" in _imported(node)}
    assert found <= {"cli/nanochat_npu/kube.py"}


def _raises_again(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def test_only_main_catches_our_errors() -> None:
    allowed = {
        "cli/nanochat_npu/main.py",
        "cli/nanochat_npu/watch.py",  # a thread: hands the error to the one that waits, where it is raised again
        "cli/nanochat_npu/cluster/follow.py",  # goes on showing a job through outages of the server
        "cli/nanochat_npu/cluster/forward.py",  # a thread, as above
        "cli/nanochat_npu/cluster/helper.py",  # takes away what was half made, as far as it can
        "cli/nanochat_npu/cluster/submit.py",  # the same
    }
    found = {
        (name, node.lineno) for name, node in _walk(CLI)
        if isinstance(node, ast.ExceptHandler) and "NanochatNpuError" in _names(node.type) and not _raises_again(node)
    }
    assert {(name, line) for name, line in found if name not in allowed} == set()


def test_no_handler_swallows_everything() -> None:
    allowed = {
        "cli/nanochat_npu/main.py",
        "cli/nanochat_npu/cluster/asking.py",  # a thread: hands the error to the one that asked, where it is raised again
    }
    broad = {
        f"{name}:{node.lineno}" for name, node in _walk(CLI)
        if isinstance(node, ast.ExceptHandler) and (node.type is None or _names(node.type) & {"Exception", "BaseException"})
        and not _raises_again(node) and name not in allowed
    }
    assert broad == set()


def test_only_console_writes_to_the_terminal() -> None:
    found = set()
    for name, node in _walk(CLI):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            found.add(f"{name}:{node.lineno} print")
        if isinstance(node, ast.Attribute) and node.attr == "echo" and _names(node.value) & {"typer", "click"}:
            found.add(f"{name}:{node.lineno} echo")
        if isinstance(node, ast.Attribute) and node.attr in ("write", "writelines") and _names(node.value) & {"stdout", "stderr"}:
            found.add(f"{name}:{node.lineno} write")
    # agent: sent into a pod and run there.
    assert {entry for entry in found if not entry.startswith(("cli/nanochat_npu/console.py", "cli/nanochat_npu/cluster/agent.py"))} == set()


def test_only_device_names_kinds_of_device() -> None:
    torch_code = [path for path in TRAINER if path.name != "device.py" and any("torch" in _imported(node) for _, node in _walk([path]))]
    to_host = {id(node.value) for _, node in _walk(torch_code) if isinstance(node, ast.keyword) and node.arg == "map_location"}
    found = {
        f"{name}:{node.lineno} {node.value}" for name, node in _walk(torch_code)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.split(":")[0] in {"npu", "cuda", "cpu"} and id(node) not in to_host
    }
    assert found == set()


def test_the_command_line_asserts_nothing() -> None:
    assert {f"{name}:{node.lineno}" for name, node in _walk(CLI) if isinstance(node, ast.Assert)} == set()


PURE = [
    path for pattern in ("cli/nanochat_npu/spec/*.py", "cli/nanochat_npu/plan.py", "cli/nanochat_npu/render.py", "cli/nanochat_npu/quoting.py",
                         "cli/nanochat_npu/manifest/*.py", "cli/nanochat_npu/estimate/*.py", "nanochat/contract/*.py") for path in sorted(ROOT.glob(pattern))
]
"""What follows from a spec follows from nothing else (design section 1): the same everywhere, at every time."""
OUTSIDE = {
    "open", "input", "print", "exists", "is_file", "is_dir", "iterdir", "glob", "rglob", "stat", "read_text", "read_bytes", "write_text",
    "write_bytes", "mkdir", "unlink", "rename", "touch", "home", "cwd", "expanduser", "environ", "getenv", "getpass", "urandom", "now", "today",
    "utcnow", "perf_counter", "monotonic", "sleep", "gethostname", "read_history_file", "write_history_file",
}
OUTSIDE_MODULES = {
    "os", "sys", "time", "subprocess", "socket", "urllib", "http", "random", "secrets", "tempfile", "shutil", "getpass", "threading", "logging",
    "readline",
}
KNOWN = {
    ("cli/nanochat_npu/render.py", "read_text"): "its templates, which are part of the program",
    ("cli/nanochat_npu/estimate/draws.py", "random"): "a generator with a seed of its own",
    **{("nanochat/contract/chat_input.py", name): "a person's typing, which both sides read alike and may share nowhere else"
       for name in ("input", "readline", "read_history_file", "write_history_file", "mkdir", "touch")},
}


def test_what_follows_from_a_spec_asks_nothing_of_disk_clock_network_or_environment() -> None:
    assert len(PURE) > 40
    found = {(name, module) for name, node in _walk(PURE) for module in _imported(node) & OUTSIDE_MODULES}
    for name, node in _walk(PURE):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in OUTSIDE:
            found.add((name, called.id))
        elif isinstance(node, ast.Attribute) and node.attr in OUTSIDE:
            found.add((name, node.attr))
    assert found <= set(KNOWN), sorted(found - set(KNOWN))


def test_only_some_modules_start_processes() -> None:
    """Builders are started under image/ only."""
    found = {name for name, node in _walk(CLI) if "subprocess" in _imported(node)}
    assert {name for name in found if "/image/" not in name} <= {
        "cli/nanochat_npu/backends/local.py",  # the supervisor
        "cli/nanochat_npu/supervisor.py",  # watches launchers
        "cli/nanochat_npu/foreground.py",  # the trainer's chat, server, export
        "cli/nanochat_npu/processes.py",  # how they are started
    }


def test_no_two_modules_import_each_other() -> None:
    graph = grimp.build_graph("nanochat", "nanochat_npu", exclude_type_checking_imports=True, cache_dir=None)
    graphlib.TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}).prepare()


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        ("nanochat.contract", "torch numpy yaml kubernetes nanochat_npu"),
        ("nanochat_npu.main", "torch numpy kubernetes jinja2 pydantic yaml"),
        ("nanochat_npu.spec nanochat_npu.plan nanochat_npu.render nanochat_npu.commands.render", "torch numpy kubernetes swanlab"),
        ("nanochat nanochat.__main__", "torch numpy nanochat_npu"),
    ],
)
def test_what_an_import_drags_in(modules: str, forbidden: str) -> None:
    script = f"import sys\nfor name in {modules.split()!r}: __import__(name)\nprint([name for name in {forbidden.split()!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_ci_can_look_at_failures_again() -> None:
    """`.ci/run` does so without xdist, whose marks are an unknown word then; markers are strict."""
    assert "-p no:xdist" in (ROOT / ".ci/run").read_text()
    marked = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.xdist_group" in path.read_text(encoding="utf-8")]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "--collect-only", *marked], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
