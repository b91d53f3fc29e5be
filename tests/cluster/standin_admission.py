"""The stand-in's admission webhooks: defaults, and the rules that Volcano's webhook enforces beside the CRD's schema.

Rule ids as in `nanochat_npu.volcano_rules`. Of V30 (Kubernetes' validation of pod templates) only what the recorded cases need.
"""

import json
import re
import ssl
import threading
from base64 import b64encode
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from nanochat_npu.kube import Kube
from nanochat_npu.resources import QUEUES

Object = dict[str, Any]
EVENTS = ("*", "PodFailed", "PodEvicted", "PodPending", "Unknown", "TaskCompleted", "TaskFailed", "JobUpdated")
ACTIONS = ("AbortJob", "RestartJob", "RestartTask", "RestartPod", "RestartPartition", "TerminateJob", "CompleteJob", "ResumeJob")
PLUGINS = ("ssh", "env", "svc", "tensorflow", "mpi", "pytorch", "hcclrank", "ray")
QUANTITY = re.compile(r"([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)")
IDENTIFIER = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def serve(kube: Kube, port: int, cert: Path, key: Path) -> None:
    """Answer on loopback until the process ends."""

    class Handler(BaseHTTPRequestHandler):
        """One admission review."""

        def do_POST(self) -> None:
            """Answer a review."""
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            answer = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": review(kube, self.path.partition("?")[0], request)}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def review(kube: Kube, path: str, request: Object) -> Object:
    """The answer to one request of the API server."""
    uid, job = request["uid"], request.get("object") or {}
    if path == "/jobs/mutate":
        trouble = types(job)
        if trouble:
            return {"uid": uid, "allowed": False, "status": {"message": trouble, "code": 400}}
        patch = defaults(job)
        extra = {"patchType": "JSONPatch", "patch": b64encode(json.dumps(patch).encode()).decode()} if patch else {}
        return {"uid": uid, "allowed": True, **extra}
    if path == "/jobs/validate":
        texts = changes(request["oldObject"], job) if request["operation"] == "UPDATE" else problems(kube, job)
        if texts:
            return {"uid": uid, "allowed": False, "status": {"message": " ".join(texts).strip(), "code": 400}}
    return {"uid": uid, "allowed": True}


def types(job: Object) -> str:
    """What Go's decoder refuses, of what the tests send: numbers and booleans where text belongs, quantities that do not parse."""
    for task in job.get("spec", {}).get("tasks", []):
        template = task.get("template", {})
        for value in template.get("metadata", {}).get("annotations", {}).values():
            if not isinstance(value, str):
                return f"json: cannot unmarshal {_go(value)} into Go struct field ObjectMeta.spec.tasks.template.metadata.annotations of type string"
        for container in template.get("spec", {}).get("containers", []):
            for variable in container.get("env", []):
                if not isinstance(variable.get("value", ""), str):
                    return f"json: cannot unmarshal {_go(variable['value'])} into Go struct field EnvVar.spec.tasks.template.spec.containers.env.value of type string"
            for amounts in container.get("resources", {}).values():
                for amount in amounts.values() if isinstance(amounts, dict) else []:
                    if not QUANTITY.fullmatch(str(amount)):
                        return f"quantities must match the regular expression '^{QUANTITY.pattern}$'"
    return ""


def _go(value: Any) -> str:
    return "bool" if isinstance(value, bool) else "number"


def defaults(job: Object) -> list[Object]:
    """JSON patch with what the mutating webhook fills in."""
    spec, patch = job.get("spec", {}), []
    tasks = [
        {**task, "name": task.get("name") or f"default{i}", "minAvailable": task.get("minAvailable", task.get("replicas", 0)), "maxRetry": task.get("maxRetry") or 3}
        for i, task in enumerate(spec.get("tasks", []))
    ]
    values = {
        "queue": spec.get("queue") or "default", "schedulerName": spec.get("schedulerName") or "volcano", "maxRetry": spec.get("maxRetry") or 3,
        "minAvailable": spec.get("minAvailable") or sum(task["minAvailable"] for task in tasks), "tasks": tasks,
    }
    for key, value in values.items():
        if spec.get(key) != value:
            patch.append({"op": "add", "path": f"/spec/{key}", "value": value})
    return patch


def changes(old: Object, new: Object) -> list[str]:
    """V-update: only sizes and the priority class may change."""
    def frozen(job: Object) -> Object:
        spec = {key: value for key, value in job["spec"].items() if key not in ("minAvailable", "priorityClassName")}
        return {**spec, "tasks": [{k: v for k, v in task.items() if k not in ("replicas", "minAvailable")} for task in spec.get("tasks", [])]}

    return ["job updates may not change fields other than `minAvailable`, `tasks[*].replicas` under spec"] if frozen(old) != frozen(new) else []


def problems(kube: Kube, job: Object) -> list[str]:
    """Texts of all rules that a new job breaks."""
    name, spec = job["metadata"]["name"], job["spec"]
    texts: list[str] = []
    seen: set[str] = set()
    for index, task in enumerate(spec["tasks"]):
        if task["name"] in seen:
            texts.append(f"duplicated task name {task['name']};")
            break
        seen.add(task["name"])
        if task.get("minAvailable", 0) > task.get("replicas", 0):
            texts.append(f"'minAvailable' is greater than 'replicas' in task: {task['name']}, job: {name};")
        texts += _policies(task.get("policies", [])) + _pod(index, task)
        pod = f"{name}-{task['name']}-{index}"
        if len(pod) > 63:
            texts.append(f"create pod with name {pod} validate failed [name part must be no more than 63 bytes];")
        partition = task.get("partitionPolicy")
        if partition and task.get("replicas") != partition["totalPartitions"] * partition["partitionSize"]:
            texts.append(f"'Replicas' are not equal to TotalPartitions*PartitionSize in task: {task['name']}, job: {name}")
    if len(name) > 63:
        texts.append(f"create job with name {name} validate failed [name part must be no more than 63 bytes]")
    if spec.get("minAvailable", 0) > sum(task.get("replicas", 0) for task in spec["tasks"]):
        texts.append("job 'minAvailable' should not be greater than total replicas in tasks;")
    texts += _policies(spec.get("policies", []))
    texts += [f"unable to find job plugin: {plugin};" for plugin in spec.get("plugins", {}) if plugin not in PLUGINS]
    texts += _volumes(spec) + _queue(kube, spec.get("queue", "default")) + _order(spec["tasks"])
    topology = spec.get("networkTopology", {})
    if "highestTierAllowed" in topology and "highestTierName" in topology:
        texts.append("must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously")
    return texts


def _policies(policies: list[Object]) -> list[str]:
    found: list[str] = []
    events: Counter[str] = Counter()
    codes: Counter[int] = Counter()
    for policy in policies:
        mine = {event for event in [policy.get("event"), *policy.get("events", [])] if event}
        code = policy.get("exitCode")
        if mine and code is not None:
            found.append("must not specify event and exitCode simultaneously")
        elif not mine and code is None:
            found.append("either event and exitCode should be specified")
        elif mine:
            found += [f'spec.policies: Invalid value: "{event}": invalid policy event' for event in mine if event not in EVENTS]
            if policy.get("action") not in ACTIONS:
                found.append(f'spec.policies: Invalid value: "{policy.get("action")}": invalid policy action')
        elif code == 0:
            found.append("0 is not a valid error code")
        events.update(mine)
        codes.update([code] if code is not None else [])
    found += [f"duplicate event {event}  across different policy" for event, count in events.items() if count > 1]
    found += [f"duplicate exitCode {code}" for code, count in codes.items() if count > 1]
    if "*" in events and len(events) > 1:
        found.append("if there's * here, no other policy should be here")
    if not found:
        return []
    return [f"1 error occurred:\n\t* {found[0]}\n\n valid events are [{' '.join(EVENTS)}], valid actions are [{' '.join(ACTIONS)}];"]


def _volumes(spec: Object) -> list[str]:
    texts, paths = [], set()
    for volume in spec.get("volumes") or []:
        if volume["mountPath"] in paths:
            texts.append(f"duplicated mountPath: {volume['mountPath']};")
        paths.add(volume["mountPath"])
        if not volume.get("volumeClaim") and not volume.get("volumeClaimName"):
            texts.append("either VolumeClaim or VolumeClaimName must be specified;")
    return texts


def _queue(kube: Kube, name: str) -> list[str]:
    found = kube.find(QUEUES, name)
    if found is None:
        return [f'unable to find job queue: queue.scheduling.volcano.sh "{name}" not found;']
    state = found.get("status", {}).get("state", "")
    if state != "Open":
        return [f"can only submit job to queue with state `Open`, queue `{name}` status is `{state}`;"]
    if name == "root":
        return ["can not submit job to root queue;"]
    children = [queue for queue in kube.list(QUEUES).objects if queue.get("spec", {}).get("parent") == name]
    return [f"can only submit job to leaf queue, queue `{name}` has {len(children)} child queues;"] if children else []


def _order(tasks: list[Object]) -> list[str]:
    needs = {task["name"]: set(task.get("dependsOn", {}).get("name", [])) for task in tasks}
    while ready := {name for name, before in needs.items() if not before}:
        needs = {name: before - ready for name, before in needs.items() if name not in ready}
    return ["job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG);"] if needs else []


def _pod(index: int, task: Object) -> list[str]:
    texts, pod = [], task["template"].get("spec", {})
    base = f"spec.task[{index}].template"
    mounted = {volume["name"] for volume in pod.get("volumes", [])}
    for i, container in enumerate(pod.get("containers", [])):
        where = f"{base}.spec.containers[{i}]"
        if not container.get("image"):
            texts.append(f"{where}.image: Required value.")
        if not IDENTIFIER.fullmatch(container.get("name", "")):
            texts.append(f'{where}.name: Invalid value: "{container.get("name")}": a lowercase RFC 1123 label must consist of lower case alphanumeric characters.')
        texts += [f'{where}.ports[{n}].name: Invalid value: "{p["name"]}": must be no more than 15 characters.' for n, p in enumerate(container.get("ports", [])) if len(p.get("name", "")) > 15]
        texts += [f'{where}.volumeMounts[{n}].name: Not found: "{m["name"]}".' for n, m in enumerate(container.get("volumeMounts", [])) if m["name"] not in mounted]
        texts += _resources(where, container.get("resources", {}))
        if task.get("topologyPolicy", "none") != "none" and not str(container.get("resources", {}).get("requests", {}).get("cpu", "x")).isdigit():
            texts.append(f"the cpu request isn't  an integer in spec.task[{index}] container[{i}].")
    if pod.get("restartPolicy", "Always") not in ("Always", "OnFailure", "Never"):
        texts.append(f'{base}.spec.restartPolicy: Unsupported value: "{pod["restartPolicy"]}": supported values: "Always", "OnFailure", "Never".')
    texts += [
        f'{base}.labels: Invalid value: "{value}": must be no more than 63 bytes.' for value in task["template"].get("metadata", {}).get("labels", {}).values() if len(value) > 63
    ]
    return texts


def _resources(where: str, resources: Object) -> list[str]:
    texts = []
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    for name, amount in requests.items():
        limit = limits.get(name)
        if name.startswith("huawei.com/"):
            if limit is None:
                texts.append(f"{where}.resources.limits: Required value: Limit must be set for non overcommitable resources.")
            elif str(limit) != str(amount):
                texts.append(f'{where}.resources.requests: Invalid value: "{amount}": must be equal to {name} limit of {limit}.')
        elif name == "cpu" and limit is not None and float(amount) > float(limit):
            texts.append(f'{where}.resources.requests: Invalid value: "{amount}": must be less than or equal to {name} limit of {limit}.')
    texts += [
        f'{where}.resources.limits[{name}]: Invalid value: "{amount}": must be an integer.' for name, amount in limits.items()
        if name.startswith("huawei.com/") and not str(amount).isdigit()
    ]
    return texts
