"""The registry client against a registry that misbehaves."""

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_registry import State, digest_of, serving

from nanochat_npu.errors import ImageError
from nanochat_npu.image import registry as registry_module
from nanochat_npu.image.reference import parse_reference
from nanochat_npu.image.registry import MANIFEST_TYPES, Manifest, Registry

CONTENT = b"some layer"


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    monkeypatch.setattr(registry_module.time, "sleep", lambda _: None)
    with serving() as running:
        yield running


def client(state: State, environ: dict[str, str] | None = None) -> Registry:
    return Registry(parse_reference(f"{state.address}/train/image:one"), plain_http=True, environ=environ or {"HOME": "/nonexistent"})


def login(tmp_path: Path, address: str, user: str = "li", password: str = "pass:word") -> dict[str, str]:
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {address: {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}}}))
    return {"REGISTRY_AUTH_FILE": str(tmp_path / "auth.json"), "HOME": "/nonexistent"}


def test_what_is_pushed_can_be_found_and_read(state: State) -> None:
    registry, manifest = client(state), Manifest(b'{"a": 1}', MANIFEST_TYPES[0])
    registry.upload(digest_of(CONTENT), CONTENT)
    assert registry.put_manifest(manifest, "one") == manifest.digest
    assert registry.head("one") == manifest.digest
    assert registry.manifest("one") == manifest
    assert registry.blob(digest_of(CONTENT)) == CONTENT


def test_missing_tag_is_none_and_no_error(state: State) -> None:
    assert client(state).head("one") is None
    assert client(state).manifest("one") is None


def test_blob_that_is_there_is_not_sent_again(state: State) -> None:
    state.blobs[digest_of(CONTENT)] = CONTENT
    client(state).upload(digest_of(CONTENT), CONTENT)
    assert [method for method, _, _ in state.seen] == ["HEAD"]


def test_file_is_sent_as_it_is(state: State, tmp_path: Path) -> None:
    (tmp_path / "layer").write_bytes(CONTENT * 100_000)
    client(state).upload(digest_of(CONTENT * 100_000), tmp_path / "layer")
    assert state.blobs[digest_of(CONTENT * 100_000)] == CONTENT * 100_000


@pytest.mark.parametrize("code", [429, 500, 503])
def test_passing_trouble_is_tried_again(state: State, code: int) -> None:
    answers = [(code, {}, b""), (code, {}, b"")]
    state.script = lambda *_: answers.pop() if answers else None
    state.manifests["one"] = (b"{}", MANIFEST_TYPES[0])
    assert client(state).head("one") == digest_of(b"{}")


def test_lasting_trouble_is_reported_with_the_registrys_words(state: State) -> None:
    state.script = lambda *_: (507, {}, json.dumps({"errors": [{"code": "NOSPACE", "message": "disk full"}]}).encode())
    with pytest.raises(ImageError, match="507: NOSPACE disk full"):
        client(state).put_manifest(Manifest(b"{}", MANIFEST_TYPES[0]), "one")


def test_basic_login_is_taken_from_where_builders_keep_it(state: State, tmp_path: Path) -> None:
    state.script = lambda method, path, headers: None if headers.get("authorization") else (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")
    assert client(state, login(tmp_path, state.address)).head("one") is None
    assert state.seen[-1][2]["authorization"] == "Basic " + base64.b64encode(b"li:pass:word").decode()


def test_token_login(state: State, tmp_path: Path) -> None:
    def script(method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes] | None:
        if path.startswith("/token"):
            assert "scope=repository%3Atrain%2Fimage%3Apull" in path
            return 200, {}, b'{"token": "t0k3n"}'
        challenge = f'Bearer realm="http://{state.address}/token",service="registry",scope="repository:train/image:pull"'
        return None if headers.get("authorization") == "Bearer t0k3n" else (401, {"WWW-Authenticate": challenge}, b"")

    state.script = script
    assert client(state, login(tmp_path, state.address)).head("one") is None


def test_refused_login_says_how_to_log_in(state: State) -> None:
    state.script = lambda *_: (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")
    with pytest.raises(ImageError, match="does not allow reading from") as error:
        client(state).head("one")
    assert "docker login" in (error.value.hint or "")
    assert error.value.exit_code == 5


def test_forbidden_push_says_so(state: State) -> None:
    state.script = lambda method, path, headers: (403, {}, b'{"errors": [{"code": "DENIED", "message": "read only"}]}') if method == "PUT" else None
    with pytest.raises(ImageError, match=r"does not allow pushing to .*DENIED read only"):
        client(state).put_manifest(Manifest(b"{}", MANIFEST_TYPES[0]), "one")


def test_login_is_not_sent_to_where_a_blob_is_redirected(state: State, tmp_path: Path) -> None:
    with serving() as store:
        store.blobs[digest_of(CONTENT)] = CONTENT
        target = f"http://{store.address}/v2/x/blobs/{digest_of(CONTENT)}"

        def script(method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes] | None:
            return (307, {"Location": target}, b"") if headers.get("authorization") else (401, {"WWW-Authenticate": "Basic"}, b"")

        state.script = script
        assert client(state, login(tmp_path, state.address)).blob(digest_of(CONTENT)) == CONTENT
        assert "authorization" not in store.seen[-1][2]


def test_damaged_blob_is_found_out(state: State) -> None:
    state.blobs[digest_of(CONTENT)] = b"other"
    with pytest.raises(ImageError, match="damaged"):
        client(state).blob(digest_of(CONTENT))


def test_other_manifest_than_asked_for_is_found_out(state: State) -> None:
    state.manifests[digest_of(b"{}")] = (b'{"b": 2}', MANIFEST_TYPES[0])
    with pytest.raises(ImageError, match="another manifest"):
        client(state).manifest(digest_of(b"{}"))


def test_registry_that_is_down() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(ImageError, match="cannot be reached") as error:
        Registry(parse_reference(f"{address}/train/image:one"), plain_http=True).head("one")
    assert error.value.where == address


def test_registry_without_tls_is_not_guessed(state: State) -> None:
    with pytest.raises(ImageError, match=r"TLS|SSL|ssl") as error:
        Registry(parse_reference(f"{state.address}/train/image:one")).head("one")
    assert "plain_http" in (error.value.hint or "")


def test_mount_that_the_registry_does_not_grant_is_cancelled(state: State) -> None:
    assert client(state).mount(digest_of(CONTENT), "other") is False
    assert [method for method, _, _ in state.seen] == ["POST", "DELETE"]


def test_mount_that_is_granted(state: State) -> None:
    state.script = lambda method, path, headers: (201, {}, b"") if method == "POST" else None
    assert client(state).mount(digest_of(CONTENT), "other") is True


@pytest.mark.parametrize("text", ["", "name", "name:tag", "Registry.example.com/UPPER:tag", "host/name@sha256:short", "http://host.example.com/x", "a.b/c d"])
def test_what_is_not_a_reference(text: str) -> None:
    with pytest.raises(ImageError, match="not an image in a registry"):
        parse_reference(text)


def test_parts_of_a_reference() -> None:
    found = parse_reference("registry.example.com:5000/a/b-c:v1@sha256:" + "0" * 64)
    assert (found.registry, found.repository, found.tag, found.version) == ("registry.example.com:5000", "a/b-c", "v1", "sha256:" + "0" * 64)


@pytest.mark.parametrize("content", ["not json", '{"auths": {"HOST": {"auth": "!!!"}}}', '{"auths": {"HOST": {"auth": "bm9jb2xvbg=="}}}'])
def test_damaged_file_of_logins_is_named(state: State, tmp_path: Path, content: str) -> None:
    (tmp_path / "auth.json").write_text(content.replace("HOST", state.address))
    state.script = lambda *_: (401, {"WWW-Authenticate": "Basic"}, b"")
    with pytest.raises(ImageError, match="login"):
        client(state, {"REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}).head("one")
