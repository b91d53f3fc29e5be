"""init, validate, plan and config as a person types them: what is on stdout, what on stderr, and the exit code."""

import io
import json
import os
import resource
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jsonschema
import pytest
import typer

from nanochat_npu.complaints import as_usage
from nanochat_npu.errors import UsageError
from nanochat_npu.main import COMMANDS, main
from nanochat_npu.options import complete_spec
from nanochat_npu.tables import cells
from nanochat_npu.writing import write_result


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """stdout as JSON."""
        value: dict[str, Any] = json.loads(self.out)
        return value


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a command line in an empty folder, in English."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NANOCHAT_NPU_SITE", "")
    for name in ("NNPU", "DEPTH", "DEVICE_BATCH_SIZE", "NNODES", "NPROC_PER_NODE"):
        monkeypatch.delenv(name, raising=False)

    def run_it(*args: str) -> Result:
        with pytest.raises(SystemExit) as end:
            main(list(args))
        captured = capsys.readouterr()
        return Result(int(end.value.code or 0), captured.out, captured.err)

    return run_it


def test_a_good_spec_is_said_to_be_one(run: Run) -> None:
    result = run("validate", "tiny")
    assert result.code == 0
    assert result.out.startswith("tiny: ")
    assert "next: nanochat-npu plan tiny" in result.err


def test_a_bad_spec_is_exit_3_with_place_excerpt_and_hint_on_stderr(run: Run) -> None:
    Path("job.yaml").write_text("name: a\nrun: {model: {dept: 3}}\nbackend: here\n")
    result = run("validate", "job.yaml")
    assert (result.code, result.out) == (3, "")
    assert "job.yaml:2:15: run.model.dept: unknown key\n    2 | run: {model: {dept: 3}}\n      |               ^~~~\nhint: did you mean depth?" in result.err
    assert "job.yaml:3:10: backend" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("command", ["validate", "plan", "render"])
def test_problems_as_json_for_every_command_that_reads_specs(run: Run, command: str) -> None:
    Path("job.yaml").write_text("name: a\nrun: {model: {depth: x}}\n")
    result = run(command, "job.yaml", "-o", "json")
    value = result.json()
    assert (result.code, value["exit_code"]) == (3, 3)
    (problem,) = value["errors"]
    assert {"line": 2, "column": 22, "path": "run.model.depth"}.items() <= problem.items()
    assert set(problem) >= {"line", "column", "path", "message", "hint"}


def test_a_spec_from_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"name: a\n"), isatty=lambda: False))
    assert run("validate", "-").code == 0


@pytest.mark.parametrize("options", [("--sweep", "run.model.depth=2,4"), ("--sweep", "run.model.depth=2,4", "--price", "3CNY")], ids=["sweep", "price"])
def test_a_spec_from_stdin_is_there_for_all_that_a_command_wants_of_it(run: Run, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]) -> None:
    spec = b"name: piped\nbackend: volcano\nresources: {nodes: 2, npus_per_node: 8, npu: 910B3}\nstorage: {output: {claim: c, path: /output}}\nimage: {ref: a/b:1}\n"
    Path("job.yaml").write_bytes(spec)
    from_file = run("plan", "job.yaml", *options)
    assert (from_file.code, from_file.err) == (0, "")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(spec), isatty=lambda: False))
    assert run("plan", "-", *options).out == from_file.out


def test_plan_as_json_has_the_promised_keys(run: Run) -> None:
    value = run("plan", "d20", "-o", "json").json()
    assert value["schema_version"] == 1
    for key in ("parameters", "flops_per_token", "tokens", "steps", "tokens_per_step", "device_batch", "grad_accum", "world_size", "depth"):
        assert value[key], key


def test_plan_counts_one_as_one(run: Run) -> None:
    out = run("plan", "tiny", "--set", "run.pretrain.device_batch=1").out
    assert "local, 1 × 1 NPU, or a CPU process where there is none" in out
    assert "1 sequence × 128 tokens × 1 rank × 16 accumulated" in out
    out = run("plan", "tiny", "--set", "resources.nodes=2").out
    assert "local, 2 × 1 NPUs, or CPU processes where there are none" in out
    assert "4 sequences × 128 tokens × 2 ranks × 2 accumulated" in out
    assert "local, CPU, 1 node\n" in run("plan", "tiny", "--set", "resources.npus_per_node=0").out


def test_plan_takes_overrides_and_repeats_them_in_the_next_command(run: Run) -> None:
    result = run("plan", "tiny", "--set", "run.model.depth=4")
    assert result.code == 0
    assert "--set run.model.depth=4" in result.err


def test_config_show_lists_every_value_once_with_its_origin(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("cluster: {queue: research}\n")
    monkeypatch.setenv("NANOCHAT_NPU_SITE", str(site))
    monkeypatch.setenv("NANOCHAT_LOGGER", "none")
    values = run("config", "show", "d20", "--set", "run.seed=7", "-o", "json").json()["values"]
    origins = {value["path"]: value["origin"] for value in values}
    assert len(origins) == len(values)
    wanted = {"cluster.queue": "site file", "run.model.depth": "spec", "run.tracking.logger": "environment $NANOCHAT_LOGGER", "run.seed": "--set", "run.compile": "default"}
    assert wanted.items() <= origins.items()


def test_config_schema_accepts_presets_and_refuses_unknown_keys(run: Run) -> None:
    schema = json.loads(run("config", "schema").out)
    jsonschema.validate({"name": "a", "resources": {"nodes": 2}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "a", "resource": {}}, schema)


def test_init_writes_the_preset_and_keeps_its_comments(run: Run) -> None:
    result = run("init", "tiny", "--name", "mine")
    assert (result.code, result.out) == (0, "mine.yaml\n")
    text = Path("mine.yaml").read_text()
    assert "name: mine\n" in text
    assert "# small stories" in text
    assert run("validate", "mine.yaml").code == 0


def test_init_takes_what_users_of_shell_scripts_export(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NNPU": "8", "DEPTH": "24", "DEVICE_BATCH_SIZE": "4", "TOTAL_BATCH_SIZE": "524288"}.items():
        monkeypatch.setenv(name, value)
    result = run("init", "d26")
    assert result.code == 0
    assert "resources.npus_per_node: 8, from NNPU" in result.err
    value = run("plan", "d26.yaml", "-o", "json").json()
    assert (value["world_size"], value["depth"], value["device_batch"], value["tokens_per_step"]) == (8, 24, 4, 524288)


@pytest.mark.parametrize(("name", "value"), [("NNPU", "9"), ("DEPTH", "deep"), ("DEVICE_BATCH_SIZE", "-1"), ("DEPTH", "x: {")])
def test_init_leaves_nothing_behind_when_the_environment_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    result = run("init", "d26")
    assert result.code == 3
    assert f"environment ${name}: " in result.err
    assert "d26.yaml" not in result.err
    assert not Path("d26.yaml").exists()


def test_init_has_no_comment_about_another_size(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    original = run("init", "d26", "--to", "-").out
    assert original.startswith("# d26 (1.68 B parameters) on four 910B NPUs")
    monkeypatch.setenv("DEPTH", "26")
    assert run("init", "d26", "--to", "-").out == original
    monkeypatch.setenv("NNPU", "8")
    assert run("init", "d26", "--to", "-").out.startswith("# From the preset d26, with resources.npus_per_node: 8.\n")
    monkeypatch.setenv("DEPTH", "20")
    text = run("init", "d26", "--to", "-").out
    assert text.startswith("# From the preset d26, with run.model.depth: 20, resources.npus_per_node: 8.\nspec_version: 1\n")
    assert "GB" not in text
    assert "# Queue, registry" in text


def test_init_has_no_comment_about_other_data(run: Run) -> None:
    assert "# small stories" in run("init", "tiny", "--to", "-").out
    text = run("init", "tiny", "--set", "run.data={source: folder, dir: notes}", "--to", "-").out
    assert text.startswith("# From the preset tiny, with run.data.source: folder.\nspec_version: 1\n")
    assert "  data: {dir: notes, source: folder}\n" in text
    odd = run("init", "tiny", "--set", "run.data.source=folder", "--set", "run.data.dir=a} # b", "--to", "odd.yaml")
    assert odd.code == 0
    values = {value["path"]: value["value"] for value in run("config", "show", "odd.yaml", "-o", "json").json()["values"]}
    assert values["run.data.dir"].endswith("/a} # b")
    assert "seen from" in run("init", "laptop", "--to", "-").out
    assert "seen from" not in run("init", "laptop", "--set", "run.data.dir=notes", "--to", "-").out


def test_init_lets_an_override_win_over_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPTH", "2O")
    result = run("init", "d26", "--set", "run.model.depth=24")
    assert result.code == 0
    assert "DEPTH" not in result.err


def test_init_names_the_option_that_a_wrong_value_is_from_and_no_line_of_a_file_that_is_not_there(run: Run) -> None:
    options = ("--set", "a.b=c", "--set", "run.stages=[pretrian]", "--name", "Bad Name")
    result = run("init", "tiny", *options)
    assert result.code == 3
    for words in ("--set a.b=c: a: unknown key\n", "--set run.stages=[pretrian]: run.stages[0]: ", "--name Bad Name: name: "):
        assert words in result.err
    assert "tiny.yaml" not in result.err
    errors = run("init", "tiny", *options, "-o", "json").json()["errors"]
    assert {(error["file"], error["line"]) for error in errors} == {("--set a.b=c", None), ("--set run.stages=[pretrian]", None), ("--name Bad Name", None)}
    assert not Path("tiny.yaml").exists()


def test_init_sets_lists_and_maps_as_other_commands_do(run: Run) -> None:
    options = [word for item in ("run.stages=[tokenizer, pretrain]", "resources={nodes: 2}", "retries={failures: 3, preemptions: 9}") for word in ("--set", item)]
    assert run("init", "tiny", *options).code == 0
    text = Path("tiny.yaml").read_text()
    assert "  stages: [tokenizer, pretrain]\n" in text
    assert "resources: {nodes: 2, npus_per_node: 1}" in text
    assert text.endswith("retries: {failures: 3, preemptions: 9}\n")
    assert run("plan", "tiny.yaml", "-o", "json").json()["parameters"] == run("plan", "tiny", *options, "-o", "json").json()["parameters"]


def test_init_into_no_file_says_what_to_do(run: Run, tmp_path: Path) -> None:
    missing = run("init", "tiny", "--to", "my folder/x.yaml")
    assert (missing.code, missing.err) == (2, "error: --to: there is no folder 'my folder'\nhint: mkdir -p 'my folder'\n")
    folder = run("init", "tiny", "--to", str(tmp_path), "--yes")
    assert (folder.code, folder.err) == (2, f"error: --to: '{tmp_path}' is a folder\nhint: name a file: {tmp_path}/NAME\n")


@pytest.mark.parametrize("words", [("config", "schema"), ("ranktable", "generate", "inventory.yaml"), ("init", "tiny", "--yes")], ids=" ".join)
def test_a_result_that_cannot_be_written_is_no_bug(run: Run, words: tuple[str, ...]) -> None:
    Path("inventory.yaml").write_text("servers: [{node: a, device_ips: [10.0.0.1]}]\n")
    for to, says in (
        ("missing/x", "error: --to: there is no folder 'missing'\nhint: mkdir -p missing\n"),
        ("/proc/version", "error: --to: cannot write '/proc/version': "),  # not even root may
        (".", "error: --to: '.' is a folder\nhint: name a file: NAME\n"),
    ):
        result = run(*words, "--to", to)
        assert (result.code, result.out) == (2, "")
        assert says in result.err


def test_a_disk_that_fills_up_costs_nothing_of_what_a_file_held(tmp_path: Path) -> None:
    """And leaves no half of a new one; `lint --fix` writes over a person's own file."""
    old, link = tmp_path / "old.yaml", tmp_path / "link.yaml"
    old.write_text("precious\n")
    old.chmod(0o640)
    link.symlink_to(old)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        for path in (old, link, tmp_path / "new.yaml"):
            with pytest.raises(UsageError, match=f"--fix: cannot write '{path}'"):
                write_result(path, "x" * 20_000, where="--fix")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "old.yaml"]
    assert old.read_text() == "precious\n"
    write_result(link, "better\n")
    assert (old.read_text(), link.is_symlink(), old.stat().st_mode & 0o777) == ("better\n", True, 0o640)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_result_may_go_to_a_device_or_a_pipe(tmp_path: Path) -> None:
    write_result(Path("/dev/null"), "x")
    assert Path("/dev/null").is_char_device()
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_result(tmp_path / "pipe", "x")
    assert os.read(reader, 10) == b"x"
    os.close(reader)


def test_a_spec_that_is_no_file_says_what_to_do(run: Run) -> None:
    empty = run("validate", "")
    assert (empty.code, empty.err.splitlines()[0]) == (2, "error: the name of the spec is empty")
    assert "presets: tiny" in empty.err
    Path("jobs").mkdir()
    Path("jobs/mine.yaml").write_text("name: a\n")
    folder = run("plan", "jobs")
    assert (folder.code, folder.err) == (2, "error: 'jobs' is a folder\nhint: name a file: jobs/mine.yaml\n")


def test_init_does_not_overwrite(run: Run) -> None:
    Path("tiny.yaml").write_text("precious\n")
    assert run("init", "tiny").code == 2
    assert Path("tiny.yaml").read_text() == "precious\n"
    assert run("init", "tiny", "--yes").code == 0


def test_init_alone_lists_the_presets(run: Run) -> None:
    assert [line.split()[0] for line in run("init").out.splitlines()] == ["tiny", "laptop", "d12", "d20", "d26", "d32-2x8"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["validat", "tiny"], "did you mean validate?"),
        (["qqq"], "commands: init, validate"),
        (["plan"], "nanochat-npu plan --help"),
        (["plan", "tiny", "--outptu", "json"], "--output"),
        (["plan", "tiny", "-o", "yaml"], "nanochat-npu plan --help"),
        (["plan", "tniy"], "did you mean tiny?"),
        (["plan", "tiny", "--set", "x"], "expected KEY=VALUE"),
        (["--lang", "fr", "plan"], "choose en, zh"),
        (["--bogus"], "nanochat-npu --help"),
        (["config", "shw"], "did you mean show?"),
        (["config", "nothing"], "commands: show, schema"),
        (["plan", "tiny", "--outptu", "json"], "did you mean --output?"),
        (["logs", "x", "--rank"], "error: --rank needs a value\nhint: nanochat-npu logs --help"),
        (["logs", "x", "--rank", "one"], "error: --rank / -r: 'one' is not a whole number\nhint: nanochat-npu logs --help"),
        (["logs", "x", "--rank=-1"], "--rank / -r: -1 is too small; at least 0"),
        (["serve", "x", "--port", "70000"], "--port: 70000 is too large; at most 65535"),
        (["submit", "tiny", "--follow=yes"], "error: --follow takes no value\nhint: nanochat-npu submit --help"),
        (["plan", "a", "b"], "too many arguments: b"),
    ],
)
def test_usage_errors_are_exit_2_with_a_way_out(run: Run, args: list[str], words: str) -> None:
    result = run(*args)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert "Traceback" not in result.err


def test_usage_errors_as_json(run: Run) -> None:
    value = run("validate", "nothing.yaml", "-o", "json").json()
    assert (value["error"]["kind"], value["exit_code"]) == ("usage", 2)


def test_a_bug_of_ours_is_one_line_and_a_file_with_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def command(spec: str, output: str = typer.Option("text", "-o")) -> None:
        """Break."""
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("nanochat_npu.commands.validate.command", command)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = run("validate", "tiny")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    (file,) = tmp_path.glob("nanochat-npu-*.log")
    assert f"this is a bug in nanochat-npu: ZeroDivisionError: planted (traceback in {file})" in result.err
    assert "Traceback" in file.read_text() and "in command" in file.read_text()
    result = run("validate", "tiny", "-o", "json")
    assert (result.code, result.err) == (1, "")
    assert (result.json()["error"]["kind"], result.json()["exit_code"]) == ("bug", 1)
    assert "Traceback" in Path(result.json()["error"]["where"]).read_text()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    result = run("validate", "tiny")
    assert (result.code, result.err.count("\n"), "could not be written" in result.err) == (1, 1, True)
    assert run("validate", "tiny", "-o", "json").json()["error"]["where"] is None


def test_help_lists_every_command(run: Run) -> None:
    out = run("--help").out
    assert all(f"  {name} " in out for name in COMMANDS)
    assert run().out == out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_loads_and_has_help(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.code == 0
    assert f"nanochat-npu {name}" in result.out


@pytest.mark.parametrize("args", [["--lang", "zh", "--help"], ["--help", "--lang=zh"]])
def test_help_in_chinese(run: Run, args: list[str]) -> None:
    out = run(*args).out
    assert "在昇腾" in out
    assert "Write a spec" not in out


def test_errors_in_chinese(run: Run) -> None:
    result = run("--lang", "zh", "validate", "tiny", "--set", "run.model.dept=3")
    assert result.code == 3
    assert "未知" in result.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["plan", "tiny", "--bogus"], "没有选项 --bogus"),
        (["plan", "tiny", "--outptu"], "没有选项 --outptu\n提示：是否想写 --output？"),
        (["plan"], "缺少 SPEC"),
        (["plan", "a", "b"], "参数太多：b"),
        (["config"], "缺少子命令"),
        (["config", "nothing"], "没有命令 'nothing'\n提示：命令：show, schema"),
        (["list", "--state", "x"], "--state: 'x' 不在可选值之中：'pending'"),
        (["logs", "x", "--rank"], "--rank 需要一个值"),
        (["logs", "x", "--rank", "q"], "--rank / -r: 'q' 不是整数"),
        (["logs", "x", "--rank=-1"], "-1 太小；至少为 0"),
        (["submit", "tiny", "--follow=3"], "--follow 不接受值"),
    ],
)
def test_the_parsers_complaints_in_chinese(run: Run, args: list[str], words: str) -> None:
    result = run("--lang", "zh", *args)
    assert (result.code, result.out) == (2, "")
    assert words in result.err


class Parameter:
    """What a complaint of the parser knows of the option that it is about."""

    opts = ("--rank", "-r")
    metavar = None
    name = "rank"


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("'one' is not a valid integer.", "--rank / -r: 'one' is not a whole number"),
        ("-1 is not in the range x>=0.", "--rank / -r: -1 is too small; at least 0"),
        ("-1 is not in the range 0<=x<=9.", "--rank / -r: -1 is too small; at least 0"),
        ("12 is not in the range 0<=x<=9.", "--rank / -r: 12 is too large; at most 9"),
        ("something new.", "--rank / -r: something new"),
    ],
)
def test_older_parsers_say_the_same_in_other_words(message: str, says: str) -> None:
    """Typer before 0.29 takes click's own types, whose sentences these are (click 8.1 to 8.3)."""
    error = typer.BadParameter(message)
    error.param = Parameter()
    assert as_usage(error, "nanochat-npu logs").message == says


@pytest.mark.parametrize(
    ("args", "option"), [(["serve", "mine", "--forward"], "--forward"), (["serve", "mine", "--npus", "1"], "--npus"), (["chat", "mine", "--npus", "1"], "--npus")]
)
def test_options_about_clusters_are_not_dropped_without_a_word(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, args: list[str], option: str) -> None:
    monkeypatch.setenv("NANOCHAT_NPU_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "jobs" / "mine" / "checkpoints" / "sft" / "step_000001").mkdir(parents=True)
    result = run(*args)
    assert (result.code, result.err) == (2, f"error: {option}: mine is on this computer, and this option is about clusters\nhint: leave {option} out\n")


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_an_empty_question_opens_no_conversation(run: Run, prompt: str) -> None:
    result = run("chat", "mine", "-p", prompt)
    assert (result.code, result.err.splitlines()[0]) == (2, "error: --prompt: the question is empty")


def test_lint_counts_one_as_one(run: Run) -> None:
    job = Path(__file__).parents[2] / "golden" / "expected" / "hami" / "volcano-job.yaml"
    assert run("lint", str(job)).err.splitlines()[-1] == "1 job, 0 errors, 0 warnings, 0 mended"
    Path("two.yaml").write_text(f"{job.read_text()}\n---\n{job.read_text()}")
    assert run("lint", "two.yaml").err.splitlines()[-1].startswith("2 jobs, ")


@pytest.fixture(autouse=True)
def _english_again() -> Any:
    yield
    from nanochat_npu.i18n import set_language

    set_language("en")


def test_doctor_says_that_a_cluster_spec_needs_a_cluster(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("job.yaml").write_text("name: mine\nbackend: volcano\nresources: {npu: 910B3}\n")
    result = run("doctor", "job.yaml")
    assert result.code == 6
    assert "mine is for a cluster (backend: volcano), and none is configured" in result.out
    assert "--set backend=local" in result.out
    assert "next: nanochat-npu doctor job.yaml" in result.err
    checks = {check["id"]: check["level"] for check in run("doctor", "job.yaml", "-o", "json").json()["checks"]}
    assert checks["spec"] == "failed"
    here = run("doctor", "job.yaml", "--set", "backend=local")
    assert "mine is for a cluster" not in here.out
    assert "job.yaml --set backend=local" in here.err


def test_doctor_has_straight_columns_in_chinese(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")  # asked for twice below, and others write to the disk meanwhile
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    checks = run("--lang", "zh", "doctor", "--local", "-o", "json").json()["checks"]
    lines = [line for line in run("--lang", "zh", "doctor", "--local").out.splitlines() if "→" not in line]
    starts = {cells(line[: line.index(check["finding"], 2 + len(check["title"]))]) for line, check in zip(lines, checks, strict=True)}
    assert len(starts) == 1


NAMES_THE_SPEC = [("validate",), ("plan",), ("config", "show"), ("render", "--to", "out"), ("doctor",)]


@pytest.mark.parametrize("command", NAMES_THE_SPEC, ids=" ".join)
def test_the_command_named_next_is_about_the_same_spec(run: Run, command: tuple[str, ...]) -> None:
    """A shell reads it back as the same file, whatever its name, with the same overrides: else it starts another job."""
    folder = Path("my 笔记 folder")
    folder.mkdir()
    file = str(folder / "it's $HOME.yaml")
    assert run("init", "tiny", "--to", file).err.splitlines()[-1] == "next: " + shlex.join(["nanochat-npu", "plan", file])
    result = run(*command, file, "--set", "name=other", "--set", "run.pretrain.steps=7")
    assert result.code == 0, result.err
    (line,) = [line for line in result.err.splitlines() if line.startswith("next: ")]
    words = shlex.split(line.removeprefix("next: "))
    assert words[:3] in (["nanochat-npu", "plan", file], ["nanochat-npu", "submit", file])
    assert words[3:7] == ["--set", "name=other", "--set", "run.pretrain.steps=7"]


@pytest.mark.parametrize("group", ["image", "ranktable", "config", "cost", "files", "data", "tracking"])
def test_a_group_without_a_command_is_one_short_error(run: Run, group: str) -> None:
    result = run(group)
    assert (result.code, result.out) == (2, "")
    error, hint = result.err.splitlines()
    assert error == f"error: nanochat-npu {group}: a command is missing"
    assert hint.startswith("hint: commands: ")
    assert "--show-completion" not in run(group, "--help").out, "completion is the whole program's"


def test_a_wrong_choice_names_the_choices_and_nothing_of_how_it_is_checked(run: Run) -> None:
    for words in (("list", "-o", "xml"), ("chat", "tiny", "--stage", "xml"), ("serve", "tiny", "--stage", "xml"), ("export", "tiny", "--to", "x", "--stage", "xml")):
        result = run(*words)
        assert result.code == 2
        assert "'xml' is not one of '" in result.err
        assert "Value error" not in result.err


def test_completion_finds_specs_below_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in" / ".git").mkdir(parents=True)
    (tmp_path / "job.yaml").touch()
    (tmp_path / ".hidden.yaml").touch()
    monkeypatch.chdir(tmp_path / "in")
    assert complete_spec("../j") == ["../job.yaml"]
    assert complete_spec("../") == ["../in/", "../job.yaml"]
    assert complete_spec("../.h") == ["../.hidden.yaml"]
    assert complete_spec("./") == []
    monkeypatch.chdir(tmp_path)
    assert complete_spec("./jo") == ["./job.yaml"]
    assert complete_spec("in") == ["in/"]
    assert not [name for name in complete_spec("") if name.startswith(".")]


def test_a_file_that_is_no_spec_is_not_called_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Site files, price tables and inventories are read by the same reader: its hints are theirs."""
    Path("empty.yaml").write_text("# nothing yet\n")
    Path("list.yaml").write_text("- a\n")
    assert "nanochat-npu init writes one" in run("validate", "empty.yaml").err
    for words in (("ranktable", "generate", "empty.yaml"), ("plan", "d20", "--prices", "empty.yaml")):
        result = run(*words)
        assert result.code == 3
        assert "the file has no content" in result.err
        assert "init" not in result.err
    assert "servers: [{node: NAME" in run("ranktable", "generate", "empty.yaml").err
    assert "list.yaml:1:1: the file must be a map (key: value), this is a list" in run("ranktable", "generate", "list.yaml").err
    monkeypatch.setenv("NANOCHAT_NPU_SITE", "empty.yaml")
    site = run("validate", "tiny")
    assert site.code == 3
    assert "hint: k8s/site.example.yaml shows what it may hold; or unset NANOCHAT_NPU_SITE" in site.err
