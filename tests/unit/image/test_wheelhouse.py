"""``image wheelhouse`` and ``image packages`` as a person types them: a real pip, a real index on loopback, wheels for arm64 on any computer."""

import dataclasses
import datetime
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from wheel_index import Index, lock_line, make_wheel, serving_wheels

from nanochat_npu.errors import ImageError
from nanochat_npu.image import wheelhouse as module
from nanochat_npu.image.describe import describe_image
from nanochat_npu.image.wheelhouse import pick_wheels
from nanochat_npu.load import load_spec
from nanochat_npu.main import main
from nanochat_npu.plan import make_plan

TORCH, NPU = "2.12.0", "2.12.0"
TAGS = ("cp312-cp312-manylinux_2_28_aarch64", "cp312-cp312-manylinux_2_28_x86_64", "cp311-cp311-manylinux_2_28_aarch64")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with torch, torch_npu and two packages of a small lock; the lock is the only thing that is not ours."""
    with serving_wheels() as running:
        for tag in TAGS:
            for name, version in (("torch", TORCH), ("torch_npu", NPU), ("fast", "1.0")):
                file, content = make_wheel(name, version, tag)
                running.wheels[file] = content
        file, content = make_wheel("pure", "2.0")
        running.wheels[file] = content
        fast = [content for file, content in running.wheels.items() if file.startswith("fast-")]
        lock = f"{lock_line('fast', '1.0', *fast)}\n{lock_line('pure', '2.0', content)}\n"
        monkeypatch.setattr(module, "requirements_lock", lambda: lock)
        # pip's own cache, and as for a real index: by default pip keeps nothing that came without TLS.
        monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip-cache"))
        monkeypatch.setenv("PIP_TRUSTED_HOST", running.host)
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        yield running


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leave:
        main(list(arguments))
    out = capsys.readouterr()
    return int(leave.value.code or 0), out.out, out.err


def fill(capsys: pytest.CaptureFixture[str], index: Index, to: Path, *more: str) -> tuple[int, str, str]:
    return run(capsys, "image", "wheelhouse", "d20", "--to", str(to), "--set", f"image.mirrors.pip={index.url}", "--set", f"image.torch_npu={NPU}", *more)


def test_wheels_of_the_images_architecture_whatever_this_computer_is(capsys: pytest.CaptureFixture[str], index: Index, tmp_path: Path) -> None:
    code, out, err = fill(capsys, index, tmp_path / "wheels", "-o", "json")
    assert code == 0, err
    wanted = ["fast-1.0-cp312-cp312-manylinux_2_28_aarch64.whl", "pure-2.0-py3-none-any.whl",
              "torch-2.12.0-cp312-cp312-manylinux_2_28_aarch64.whl", "torch_npu-2.12.0-cp312-cp312-manylinux_2_28_aarch64.whl"]
    assert json.loads(out)["wheels"] == wanted
    assert sorted(path.name for path in (tmp_path / "wheels").iterdir()) == wanted, "nothing else lies there"
    for path in (tmp_path / "wheels").iterdir():
        assert path.read_bytes() == index.wheels[path.name]


def test_x86_and_another_python(capsys: pytest.CaptureFixture[str], index: Index, tmp_path: Path) -> None:
    more = ("--set", "image.arch=amd64", "--set", f"image.mirrors.pip_torch={index.url}")
    code, out, err = fill(capsys, index, tmp_path / "x86", *more)
    assert code == 0, err
    assert "torch-2.12.0-cp312-cp312-manylinux_2_28_x86_64.whl" in out.splitlines()
    (line,) = [line for line in err.splitlines() if line.startswith("next: nanochat-npu build d20 ")]
    assert "--set image.arch=amd64" in line, "without it the build named next would be for another architecture"
    assert line.endswith(f"--set image.wheelhouse={tmp_path / 'x86'}")
    code, out, err = fill(capsys, index, tmp_path / "311", "--set", "image.python=3.11")
    assert code == 0, err
    assert "fast-1.0-cp311-cp311-manylinux_2_28_aarch64.whl" in out.splitlines()


def test_what_is_there_is_not_fetched_again(capsys: pytest.CaptureFixture[str], index: Index, tmp_path: Path) -> None:
    assert fill(capsys, index, tmp_path / "wheels")[0] == 0
    assert len(index.fetched()) == 4
    index.asked.clear()
    assert fill(capsys, index, tmp_path / "wheels")[0] == 0
    assert index.fetched() == []


@pytest.mark.parametrize("trouble", [503, "cut"])
def test_failure_leaves_nothing_and_the_next_try_goes_on(capsys: pytest.CaptureFixture[str], index: Index, tmp_path: Path, trouble: int | str) -> None:
    last = "torch_npu-2.12.0-cp312-cp312-manylinux_2_28_aarch64.whl"
    index.broken[last] = trouble
    code, out, err = fill(capsys, index, tmp_path / "wheels")
    assert (code, out) == (5, "")
    assert "pip cannot download the wheels" in err and "torch_npu" in err and "run it again" in err
    assert "Traceback" not in err.split("error: ")[1]
    assert not (tmp_path / "wheels").exists()
    index.asked.clear()
    del index.broken[last]
    assert fill(capsys, index, tmp_path / "wheels")[0] == 0
    assert index.fetched() == [last], "the others come from pip's cache"


def test_a_folder_with_wheels_stays_as_it_was(capsys: pytest.CaptureFixture[str], index: Index, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "mine.txt").write_text("mine")
    del index.wheels["pure-2.0-py3-none-any.whl"]
    assert fill(capsys, index, tmp_path / "wheels")[0] == 5
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("error", [ImageError("no network"), KeyboardInterrupt()])
@pytest.mark.parametrize("shared", [True, False], ids=["another build fills it too", "alone"])
def test_what_stopped_it_is_told_whatever_else_is_in_the_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, shared: bool) -> None:
    def collect(image: object, scratch: Path, have: Path, *_more: object) -> list[Path]:
        if shared:
            (have / ".wheels-of-another-build").mkdir()
        raise error

    monkeypatch.setattr(module, "_collect", collect)
    image = describe_image(make_plan(load_spec("d20").spec, datetime.date(2026, 11, 30)))
    with pytest.raises(type(error)) as raised:
        module.fill_wheelhouse(image, tmp_path / "wheels", lambda _: None)
    assert raised.value is error
    assert (tmp_path / "wheels").exists() is shared


def test_wheel_with_another_hash_is_refused(capsys: pytest.CaptureFixture[str], index: Index, tmp_path: Path) -> None:
    file, content = make_wheel("pure", "2.0", text="evil = True\n")
    index.wheels[file] = content
    code, _, err = fill(capsys, index, tmp_path / "wheels")
    assert code == 5
    assert "DO NOT MATCH THE HASHES" in err and "pure==2.0" in err
    assert not (tmp_path / "wheels").exists()


def test_wheel_that_does_not_exist_for_the_architecture(capsys: pytest.CaptureFixture[str], index: Index, tmp_path: Path) -> None:
    del index.wheels["fast-1.0-cp312-cp312-manylinux_2_28_aarch64.whl"]
    code, _, err = fill(capsys, index, tmp_path / "wheels")
    assert code == 5
    assert "No matching distribution found for fast==1.0" in err
    assert not (tmp_path / "wheels").exists()


def test_index_that_is_down(capsys: pytest.CaptureFixture[str], index: Index, tmp_path: Path) -> None:
    code, _, err = run(capsys, "image", "wheelhouse", "d20", "--to", str(tmp_path / "wheels"), "--set", "image.mirrors.pip=http://127.0.0.1:9/simple")
    assert code == 5
    assert "pip cannot download the wheels" in err and "image.mirrors.pip" in err
    assert not (tmp_path / "wheels").exists()


def test_folder_that_cannot_be_made(capsys: pytest.CaptureFixture[str], index: Index, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = fill(capsys, index, tmp_path / "file" / "wheels")
    assert code == 5
    assert "cannot be written" in err and "Traceback" not in err


def test_packages_are_unpacked_for_a_volume(capsys: pytest.CaptureFixture[str], index: Index, tmp_path: Path) -> None:
    arguments = ("image", "packages", "d20", "--to", str(tmp_path / "packages"), "--set", f"image.mirrors.pip={index.url}")
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    assert out.strip() == str(tmp_path / "packages")
    assert (tmp_path / "packages" / "fast" / "__init__.py").is_file() and (tmp_path / "packages" / "pure-2.0.dist-info").is_dir()
    assert not (tmp_path / "packages" / "torch").exists(), "the image brings it"
    assert run(capsys, *arguments)[0] == 5, "an existing folder is not written to"


def test_from_a_wheelhouse_only_what_the_image_installs_is_picked(capsys: pytest.CaptureFixture[str], index: Index, tmp_path: Path) -> None:
    image = describe_image(make_plan(load_spec("d20", [f"image.mirrors.pip={index.url}", f"image.torch_npu={NPU}"]).spec, datetime.date(2026, 11, 30)))
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, content in index.wheels.items():  # wheels for three targets, and something else
        (folder / name).write_bytes(content)
    (folder / "other-1.0-py3-none-any.whl").write_bytes(make_wheel("other", "1.0")[1])
    index.asked.clear()

    def pick(name: str) -> list[str]:
        (tmp_path / name).mkdir()
        return [path.name for path in pick_wheels(image, folder, tmp_path / name, lambda _: None)]

    assert pick("a") == ["fast-1.0-cp312-cp312-manylinux_2_28_aarch64.whl", "pure-2.0-py3-none-any.whl",
                         "torch-2.12.0-cp312-cp312-manylinux_2_28_aarch64.whl", "torch_npu-2.12.0-cp312-cp312-manylinux_2_28_aarch64.whl"]
    assert index.asked == [], "no network"
    (folder / "pure-2.0-py3-none-any.whl").unlink()
    with pytest.raises(ImageError, match="No matching distribution found for pure") as error:
        pick("b")
    assert "nanochat-npu image wheelhouse" in (error.value.hint or "")
    with pytest.raises(ImageError, match="no such folder of wheels"):
        pick_wheels(dataclasses.replace(image), tmp_path / "nowhere", tmp_path, lambda _: None)
