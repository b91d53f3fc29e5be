"""Writing a bundle to a folder, and the command that does it."""

import json
from pathlib import Path

import pytest
import yaml

from nanochat_npu.bundle import Bundle, write
from nanochat_npu.errors import RenderError
from nanochat_npu.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leave:
        main(list(arguments))
    out = capsys.readouterr()
    return int(leave.value.code or 0), out.out, out.err


def test_same_content_is_not_written_again(tmp_path: Path) -> None:
    bundle = Bundle({"a.txt": "one\n", "entrypoint.sh": "#!/bin/sh\n"}, "id")
    write(bundle, tmp_path)
    before = (tmp_path / "a.txt").stat().st_mtime_ns, (tmp_path / "a.txt").stat().st_ino
    write(bundle, tmp_path)
    assert ((tmp_path / "a.txt").stat().st_mtime_ns, (tmp_path / "a.txt").stat().st_ino) == before


def test_only_the_script_is_executable_and_nothing_temporary_stays(tmp_path: Path) -> None:
    write(Bundle({"a.txt": "one\n", "entrypoint.sh": "#!/bin/sh\n"}, "id"), tmp_path)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {"a.txt": 0o644, "entrypoint.sh": 0o755}


def test_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RenderError) as error:
        write(Bundle({"a.txt": "one\n"}, "id"), tmp_path / "file" / "out")
    assert "file" in str(error.value.where)


def test_render_writes_files_and_lists_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "render", "d20", "--to", str(tmp_path / "out"))
    assert code == 0
    names = ["Dockerfile", "entrypoint.sh", "run.json", "configmaps.yaml", "volcano-job.yaml"]
    assert out.split() == [str(tmp_path / "out" / name) for name in names]
    assert "next: nanochat-npu submit d20" in err


def test_render_shows_one_text_whose_objects_are_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "render", "d20")
    assert code == 0
    parts = out.split("---\n# file: ")
    assert [part.split("\n")[0] for part in parts[1:]] == ["Dockerfile", "entrypoint.sh", "run.json", "configmaps.yaml", "volcano-job.yaml"]
    assert yaml.safe_load(parts[5].split("\n", 1)[1])["kind"] == "Job"


def test_render_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "render", "d20", "-o", "json")
    result = json.loads(out)
    assert code == 0
    assert result["schema_version"] == 1
    assert yaml.safe_load(result["files"]["volcano-job.yaml"])["metadata"]["name"] == result["job"] == "d20"


def test_render_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "render", "d20", "--only", "volcano-job.yaml")
    assert code == 0
    assert yaml.safe_load(out)["kind"] == "Job"


def test_unknown_file_is_named_with_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "render", "d20", "--only", "job.yaml")
    assert (code, out) == (2, "")
    assert "volcano-job.yaml" in err
