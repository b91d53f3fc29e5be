"""The client against answers that a healthy server does not give."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from scripted import Answer, QuickClock, ScriptedServer, listing, ok, status, stream

from nanochat_npu.errors import ClusterError, ClusterForbidden, ClusterRejected, ClusterUnreachable, PrerequisiteMissing
from nanochat_npu.kube import Kube
from nanochat_npu.kube_errors import (
    BusyError,
    ConflictError,
    ExpiredError,
    LostResponseError,
    NotFoundError,
    UnauthorizedError,
)
from nanochat_npu.kubeconfig import Target
from nanochat_npu.resources import CONFIGMAPS, JOBS, NODES, PODS

JOB = {"metadata": {"name": "d20"}}
BUSY = status(429, "storage is (re)initializing", "TooManyRequests", headers={"Retry-After": "2"})


def waits(kube: Kube) -> list[float]:
    """How long the client waited each time."""
    assert isinstance(kube.clock, QuickClock)
    return kube.clock.waits


# ---- busy servers --------------------------------------------------------------------------------------------------------

def test_429_is_obeyed_for_as_long_as_it_says_and_then_works(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs/d20", BUSY, BUSY, BUSY, ok(JOB))
    kube = server.client(tmp_path)
    assert kube.get(JOBS, "d20", "train") == JOB
    assert waits(kube) == [2.0, 2.0, 2.0]


def test_retry_after_may_stand_in_the_body(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs/d20", status(429, "busy", retryAfterSeconds=7), ok(JOB))
    kube = server.client(tmp_path)
    kube.get(JOBS, "d20", "train")
    assert waits(kube) == [7.0]


def test_a_create_is_repeated_after_429_since_nothing_was_done(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("POST", "/jobs", BUSY, ok(JOB))
    assert server.client(tmp_path).create(JOBS, JOB, "train") == JOB


def test_patience_has_an_end(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs/d20", BUSY)
    kube = server.client(tmp_path)
    with pytest.raises(BusyError, match="storage is"):
        kube.get(JOBS, "d20", "train")
    assert sum(waits(kube)) <= kube.patience_s


def test_backoff_without_advice_grows_and_is_capped(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs/d20", *[status(503, "later")] * 7, ok(JOB))
    kube = server.client(tmp_path)
    kube.get(JOBS, "d20", "train")
    found = waits(kube)
    assert found[0] <= 0.5
    assert max(found) <= 15.0
    assert found[4] > found[0]


# ---- broken connections --------------------------------------------------------------------------------------------------

def test_a_read_is_repeated_after_a_reset(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs/d20", Answer(reset=True), Answer(reset=True), ok(JOB))
    assert server.client(tmp_path).get(JOBS, "d20", "train") == JOB


def test_a_create_whose_answer_is_lost_is_not_repeated_but_told(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("POST", "/jobs", Answer(reset=True))
    with pytest.raises(LostResponseError, match="broke before the answer came"):
        server.client(tmp_path).create(JOBS, JOB, "train")
    assert len(server.asked("POST")) == 1


def test_nobody_listening_names_server_and_reason(server: ScriptedServer, tmp_path: Path) -> None:
    server.close()
    kube = server.client(tmp_path)
    with pytest.raises(ClusterUnreachable, match=r"no connection to http://127\.0\.0\.1") as caught:
        kube.get(JOBS, "d20", "train")
    assert "kubectl version" in str(caught.value.hint)


# ---- answers that are not Kubernetes' ------------------------------------------------------------------------------------

def test_html_of_a_proxy_is_recognised(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs/d20", Answer(200, b"<html><title>Corporate Proxy</title><body>Please log in</body></html>", content_type="text/html"))
    with pytest.raises(ClusterUnreachable, match="Corporate Proxy") as caught:
        server.client(tmp_path).get(JOBS, "d20", "train")
    assert "NO_PROXY" in str(caught.value.hint)


def test_html_with_an_error_code_is_recognised_too(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs/d20", Answer(403, b"<html>Blocked by policy</html>", content_type="text/html"))
    with pytest.raises(ClusterUnreachable, match="Blocked by policy"):
        server.client(tmp_path).get(JOBS, "d20", "train")


def test_a_redirect_to_a_login_page_is_not_followed(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs/d20", Answer(302, b"", {"Location": "https://login.example.com/"}, content_type="text/html"))
    with pytest.raises(ClusterUnreachable, match="HTTP 302"):
        server.client(tmp_path).get(JOBS, "d20", "train")


def test_an_empty_body_is_an_error_that_says_so(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs/d20", Answer(200, b""))
    with pytest.raises(ClusterUnreachable, match="an empty body"):
        server.client(tmp_path).get(JOBS, "d20", "train")


def test_json_that_is_cut_off_is_an_error(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs/d20", Answer(200, b'{"metadata": {"na'))
    with pytest.raises(ClusterUnreachable):
        server.client(tmp_path).get(JOBS, "d20", "train")


# ---- refusals ------------------------------------------------------------------------------------------------------------

def test_403_names_verb_resource_namespace_and_user(server: ScriptedServer, tmp_path: Path) -> None:
    text = 'jobs.batch.volcano.sh is forbidden: User "li" cannot create resource "jobs" in API group "batch.volcano.sh" in the namespace "train"'
    server.on("POST", "/jobs", status(403, text, "Forbidden", group="batch.volcano.sh", kind="jobs"))
    with pytest.raises(ClusterForbidden) as caught:
        server.client(tmp_path).create(JOBS, JOB, "train")
    assert caught.value.message == 'user "li" may not create jobs.batch.volcano.sh in namespace "train"'


def test_403_of_a_quota_is_not_a_question_of_rights(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("POST", "/pods", status(403, 'pods "x" is forbidden: exceeded quota: q, requested: requests.huawei.com/Ascend910=8', "Forbidden"))
    with pytest.raises(ClusterRejected, match="exceeded quota") as caught:
        server.client(tmp_path).create(PODS, JOB, "train")
    assert "resourcequota" in str(caught.value.hint)


@pytest.mark.parametrize("answer", [
    Answer(404, b"404 page not found\n", content_type="text/plain"), status(404, "the server could not find the requested resource", "NotFound"),
])
def test_a_cluster_without_volcano_is_told_as_that(server: ScriptedServer, tmp_path: Path, answer: Answer) -> None:
    server.on("POST", "/jobs", answer)
    with pytest.raises(PrerequisiteMissing, match="Volcano is not installed"):
        server.client(tmp_path).create(JOBS, {"metadata": {}}, "train")


def test_a_missing_namespace_is_told_apart_from_a_missing_object(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("POST", "/configmaps", status(404, 'namespaces "train" not found', "NotFound", name="train", kind="namespaces"))
    server.on("GET", "/jobs/d20", status(404, 'jobs.batch.volcano.sh "d20" not found', "NotFound", name="d20", kind="jobs", group="batch.volcano.sh"))
    kube = server.client(tmp_path)
    with pytest.raises(PrerequisiteMissing, match='namespace "train" does not exist'):
        kube.create(CONFIGMAPS, JOB, "train")
    with pytest.raises(NotFoundError):
        kube.get(JOBS, "d20", "train")
    assert kube.find(JOBS, "d20", "train") is None


@pytest.mark.parametrize(("message", "deleting"), [
    ('jobs.batch.volcano.sh "d20" already exists', False), ('object is being deleted: jobs.batch.volcano.sh "d20" already exists', True),
])
def test_the_two_409s_are_told_apart(server: ScriptedServer, tmp_path: Path, message: str, deleting: bool) -> None:
    server.on("POST", "/jobs", status(409, message, "AlreadyExists"))
    with pytest.raises(ConflictError) as caught:
        server.client(tmp_path).create(JOBS, JOB, "train")
    assert caught.value.being_deleted is deleting


def test_a_webhook_that_times_out_points_at_volcanos_admission_service(server: ScriptedServer, tmp_path: Path) -> None:
    text = 'Internal error occurred: failed calling webhook "validatejob.volcano.sh": failed to call webhook: Post "https://volcano-admission-service": context deadline exceeded'
    server.on("POST", "/jobs", status(500, text, "InternalError"))
    with pytest.raises(ClusterUnreachable, match="admission webhook") as caught:
        server.client(tmp_path).create(JOBS, JOB, "train")
    assert "volcano-system" in str(caught.value.hint)


@pytest.mark.parametrize("answer", [
    status(413, "Request entity too large: limit is 3145728", "RequestEntityTooLarge"), status(500, "etcdserver: request is too large", "InternalError"),
])
def test_an_object_that_is_too_large_is_told_as_that(server: ScriptedServer, tmp_path: Path, answer: Answer) -> None:
    server.on("POST", "/configmaps", answer)
    with pytest.raises(ClusterRejected, match="too large"):
        server.client(tmp_path).create(CONFIGMAPS, JOB, "train")


@pytest.mark.parametrize("code", [*range(400, 432), 451, *range(500, 512), 599])
def test_every_code_with_every_kind_of_body_is_one_of_our_errors(server: ScriptedServer, tmp_path: Path, code: int) -> None:
    kube = server.client(tmp_path)
    for answer in (status(code, "x"), Answer(code, b""), Answer(code, b"[]"), Answer(code, b"\xff\xfe"), Answer(code, b'{"kind":"Status","message":7}')):
        server.on("POST", "/jobs", answer)
        with pytest.raises(ClusterError):
            kube.create(JOBS, JOB, "train")


# ---- warnings, pages, strictness -----------------------------------------------------------------------------------------

def test_warnings_of_the_server_are_kept_once_each(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("POST", "/jobs", ok(JOB, Warning='299 - "unknown field \\"spec.x\\""'))
    kube = server.client(tmp_path)
    kube.create(JOBS, JOB, "train")
    kube.create(JOBS, JOB, "train")
    assert kube.warnings == ['unknown field "spec.x"']


def test_objects_are_created_strictly(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("POST", "/jobs", ok(JOB))
    kube = server.client(tmp_path)
    kube.create(JOBS, JOB, "train", dry_run=True)
    kube.create(JOBS, JOB, "train")
    first, second = server.asked("POST")
    assert "fieldValidation=Strict" in first
    assert "fieldValidation=Strict" in second
    assert "dryRun=All" in first
    assert "dryRun" not in second


def test_a_list_is_read_page_by_page(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs", ok(listing([{"n": 1}], mark="next")), ok(listing([{"n": 2}], version="12")))
    page = server.client(tmp_path).list(JOBS, "train")
    assert [obj["n"] for obj in page.objects] == [1, 2]
    assert page.version == "12"


def test_a_page_mark_that_expired_begins_the_list_anew(server: ScriptedServer, tmp_path: Path) -> None:
    gone = status(410, "The provided continue parameter is too old", "Expired")
    server.on("GET", "/jobs", ok(listing([{"n": 1}], mark="next")), gone, ok(listing([{"n": 1}, {"n": 2}])))
    assert [obj["n"] for obj in server.client(tmp_path).list(JOBS, "train").objects] == [1, 2]


def test_cluster_wide_objects_are_not_asked_for_in_a_namespace(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/nodes", ok(listing([])))
    server.client(tmp_path).list(NODES)
    assert server.asked("GET")[0].startswith("/api/v1/nodes?")


def test_a_stream_whose_last_line_is_cut_off_gives_it_as_it_is(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs", stream({"type": "ADDED"}, '{"type": "MOD'))
    assert list(server.client(tmp_path).watch(JOBS, "train", version="1").lines()) == ['{"type": "ADDED"}', '{"type": "MOD']


def test_the_connection_of_a_stream_never_serves_another_request(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs", stream({"type": "ADDED"}))
    server.on("GET", "/nodes", ok(listing([])))
    client = server.client(tmp_path)
    watched = client.watch(JOBS, "train", version="1")
    connection = watched._connection
    list(watched.lines())
    assert connection.sock is None  # closed, and not lying in the pool where a late close() would break whoever has it then
    client.list(NODES)
    watched.close()
    assert client.list(NODES).objects == []


def test_410_before_a_watch_begins_is_told_as_expired(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs", status(410, "too old resource version", "Expired"))
    with pytest.raises(ExpiredError):
        server.client(tmp_path).watch(JOBS, "train", version="1")


def test_504_of_a_watch_cache_that_is_behind_means_to_list_again(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs", status(504, "Timeout: Too large resource version: 99, current: 3", "Timeout"))
    with pytest.raises(ExpiredError):
        server.client(tmp_path).watch(JOBS, "train", version="99")


# ---- who we are ----------------------------------------------------------------------------------------------------------

def plugin(folder: Path, body: str) -> dict[str, Any]:
    """A user whose credentials come from a program."""
    path = folder / "plugin.sh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path), "interactiveMode": "Never"}}


def counting(folder: Path) -> dict[str, Any]:
    """A plugin that gives token-1, token-2, …, each valid for ten minutes."""
    counter = folder / "count"
    return plugin(folder, f"""n=$(( $(cat {counter} 2>/dev/null || echo 0) + 1 )); echo $n > {counter}
cat <<END
{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{"token": "token-$n", "expirationTimestamp": "2999-01-01T00:00:00Z"}}}}
END""")


def test_a_token_that_expires_in_the_middle_is_renewed_once(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs/d20", ok(JOB), status(401, "Unauthorized", "Unauthorized"), ok(JOB))
    kube = server.client(tmp_path, counting(tmp_path))
    kube.get(JOBS, "d20", "train")
    kube.get(JOBS, "d20", "train")
    tokens = [headers.get("Authorization") or headers.get("authorization") for headers in server.headers]
    assert tokens == ["Bearer token-1", "Bearer token-1", "Bearer token-2"]


def test_credentials_that_are_refused_twice_are_an_error(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", "/jobs/d20", status(401, "Unauthorized", "Unauthorized"))
    with pytest.raises(UnauthorizedError, match="does not accept these credentials"):
        server.client(tmp_path, counting(tmp_path)).get(JOBS, "d20", "train")
    assert len(server.requests) == 2


def test_a_plugin_that_fails_is_told_with_what_it_said(server: ScriptedServer, tmp_path: Path) -> None:
    kube = server.client(tmp_path, plugin(tmp_path, "echo 'session expired: run iam login' >&2; exit 3"))
    with pytest.raises(ClusterUnreachable, match="session expired: run iam login"):
        kube.get(JOBS, "d20", "train")
    assert server.requests == []


def test_a_plugin_that_is_missing_is_told_by_name(server: ScriptedServer, tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(tmp_path / "nowhere"), "interactiveMode": "Never"}}
    with pytest.raises(ClusterUnreachable, match="nowhere"):
        server.client(tmp_path, user).get(JOBS, "d20", "train")


def test_a_plugin_that_prints_no_json_is_an_error(server: ScriptedServer, tmp_path: Path) -> None:
    with pytest.raises(ClusterUnreachable, match="decode"):
        server.client(tmp_path, plugin(tmp_path, "echo hello")).get(JOBS, "d20", "train")


def test_a_token_file_that_was_rotated_is_read_again(server: ScriptedServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    server.on("GET", "/jobs/d20", ok(JOB), status(401, "Unauthorized", "Unauthorized"), ok(JOB))
    kube = server.client(tmp_path, {"tokenFile": str(token)})
    kube.get(JOBS, "d20", "train")
    token.write_text("new")
    kube.get(JOBS, "d20", "train")
    tokens = [headers.get("Authorization") or headers.get("authorization") for headers in server.headers]
    assert tokens[0] == "Bearer old"
    assert tokens[-1] == "Bearer new"


# ---- kubeconfigs ---------------------------------------------------------------------------------------------------------

def config(path: Path, contexts: dict[str, str], current: str = "") -> Path:
    """A kubeconfig with these contexts and their namespaces."""
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": current,
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}], "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u", **({"namespace": space} if space else {})}} for name, space in contexts.items()],
    }))
    return path


def choose(*files: Path, **options: Any) -> Target:
    """The target for this KUBECONFIG."""
    return Target.choose(environ={"KUBECONFIG": os.pathsep.join(map(str, files))}, **options)


def test_the_contexts_namespace_is_used_and_not_default(tmp_path: Path) -> None:
    assert choose(config(tmp_path / "a", {"x": "team"}, "x")).namespace == "team"
    assert choose(config(tmp_path / "b", {"x": ""}, "x")).namespace == "default"


def test_of_several_files_the_first_current_context_wins_as_with_kubectl(tmp_path: Path) -> None:
    first, second = config(tmp_path / "a", {"one": "n1"}, "one"), config(tmp_path / "b", {"two": "n2"}, "two")
    assert choose(first, second).context == "one"
    assert choose(config(tmp_path / "c", {"one": "n1"}), second).context == "two"


@pytest.mark.parametrize("name", ["arn:aws:eks:cn-north-1:123:cluster/x", "https://host:6443/api", "kind-a b", "ü"])
def test_context_names_may_hold_anything(tmp_path: Path, name: str) -> None:
    assert choose(config(tmp_path / "a", {name: "n"}, name)).context == name
    assert choose(config(tmp_path / "b", {name: "n", "other": ""}, "other"), context=name).namespace == "n"


def test_an_unknown_context_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnreachable, match='no context "prod"') as caught:
        choose(config(tmp_path / "a", {"dev": "", "test": ""}, "dev"), context="prod")
    assert "dev, test" in str(caught.value.hint)


def test_files_that_are_empty_or_missing_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert choose(tmp_path / "missing", tmp_path / "empty", config(tmp_path / "a", {"x": "n"}, "x")).context == "x"


@pytest.mark.parametrize("content", ["{", "- a\n", "\x00", "contexts: 7\ncurrent-context: x\n", "contexts: [7, {name: 3}]\n"])
def test_a_file_that_is_no_kubeconfig_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken"
    path.write_text(content)
    with pytest.raises(ClusterUnreachable, match="broken"):
        choose(path)


def test_without_any_kubeconfig_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnreachable) as caught:
        Target.choose(environ={"HOME": str(tmp_path)})
    assert "backend=local" in str(caught.value.hint)


def test_relative_certificates_are_found_beside_their_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    path = config(folder / "config", {"x": "n"}, "x")
    content = json.loads(path.read_text())
    content["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt"
    path.write_text(json.dumps(content))
    (folder / "ca.crt").write_text("not a certificate")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClusterUnreachable) as caught:
        Kube(choose(path), clock=QuickClock()).get(JOBS, "x", "train")
    assert "No such file" not in str(caught.value)  # it was found; that it is rubbish is another matter
