"""A real control plane on loopback: etcd, kube-apiserver, kube-controller-manager, Volcano's CRDs, and kwok's simulated nodes.

Takes about 8 s to start and 0.7 GB. Volcano itself is the stand-in (``standin_main``), or the real programs where
``NANOCHAT_VOLCANO_BIN`` names a folder with vc-scheduler, vc-controller-manager and vc-webhook-manager.
"""

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from loopback import free_port
from programs import Programs

HERE = Path(__file__).parent
NODE = HERE.parents[1] / "k8s" / "kwok" / "node.yaml"
USERS = {"admin": "system:masters", "weak": "nobody", "tenant": "tenants", "reader": "readers"}
"""Users by name with their group; RBAC knows only the first until a test binds the others."""
HOOKS = {
    "/jobs/mutate": ("jobs", ["CREATE"]), "/jobs/validate": ("jobs", ["CREATE", "UPDATE"]), "/podgroups/validate": ("podgroups", ["CREATE"]),
    "/queues/mutate": ("queues", ["CREATE"]), "/queues/validate": ("queues", ["CREATE", "UPDATE", "DELETE"]),
}
"""What each of Volcano's admission handlers accepts; any other operation is refused by it."""
SCHEDULER_CONF = """actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}]
- plugins: [{name: overcommit}, {name: drf, enablePreemptable: false}, {name: predicates}, {name: proportion}, {name: nodeorder}, {name: binpack}]
"""


class PlaneError(Exception):
    """The control plane did not come up, or answered what it should not; the text names the log."""


@dataclass
class Plane:
    """One control plane in a folder of its own."""

    folder: Path
    programs: Programs
    volcano: Path | None = None
    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _binder: threading.Thread | None = None

    # ---- for tests -------------------------------------------------------------------------------------------------

    def kubeconfig(self, user: str = "admin") -> Path:
        """Kubeconfig of a user."""
        return self.folder / f"{user}.kubeconfig"

    @property
    def server(self) -> str:
        """Address of the API server."""
        return f"https://127.0.0.1:{self.ports['api']}"

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """A raw request as admin; the parsed answer.

        Raises:
            PlaneError: The answer is 400 or more; the text has code and body.
        """
        context = ssl.create_default_context(cafile=str(self.folder / "pki" / "ca.crt"))
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server + path, method=method, data=data)
        request.add_header("Authorization", "Bearer admin-token")
        request.add_header("Content-Type", content_type)
        try:
            with urllib.request.urlopen(request, context=context, timeout=30) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise PlaneError(f"{method} {path}: {error.code} {error.read()[:800].decode(errors='replace')}") from None
        try:
            return json.loads(raw)
        except ValueError:
            return raw.decode()

    @property
    def claim(self) -> Path:
        """The folder that plays the output claim: commands in pods run in it."""
        return self.folder / "claim"

    def write_log(self, pod: str, *lines: str) -> None:
        """Add lines to a pod's log, each at its own nanosecond."""
        with (self.folder / "logs" / pod).open("a") as file:
            for line in lines:
                now = time.time_ns()
                stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9)) + f".{now % 10**9:09d}Z"
                file.write(f"{stamp} stdout F {line}\n")

    def _bind_others(self) -> None:
        """Play the default scheduler for pods that are not Volcano's: the first node takes them."""
        waiting = "fieldSelector=spec.nodeName%3D%2Cspec.schedulerName%3Ddefault-scheduler"
        while not self._stopping.wait(0.1):
            with contextlib.suppress(PlaneError, OSError):  # a server that restarts in a test
                for pod in self.request("GET", f"/api/v1/pods?{waiting}")["items"]:
                    meta = pod["metadata"]
                    self.request("POST", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding", {
                        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": {"apiVersion": "v1", "kind": "Node", "name": "npu-000"},
                    })

    def add_node(self, name: str, **labels: str) -> None:
        """One simulated 910B server; labels of value "" are taken away."""
        node = yaml.safe_load(NODE.read_text().replace("{name}", name))
        status = node.pop("status")
        node["metadata"]["labels"] = {k: v for k, v in {**node["metadata"]["labels"], **labels}.items() if v}
        self.request("POST", "/api/v1/nodes", node)
        self.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, "application/merge-patch+json")

    def wait(self, what: str, done: Callable[[], Any], seconds: float = 60.0) -> Any:
        """The first true value of `done`, asked ten times a second.

        Raises:
            PlaneError: It took too long.
        """
        end, last = time.monotonic() + seconds, ""
        while time.monotonic() < end:
            try:
                if value := done():
                    return value
            except (PlaneError, OSError) as error:
                last = str(error)
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise PlaneError(f"{name} ended with {process.returncode}: {self._tail(name)}")
            time.sleep(0.1)
        raise PlaneError(f"{what} took more than {seconds:.0f} s: {last}")

    # ---- up and down -----------------------------------------------------------------------------------------------

    def up(self, nodes: int) -> "Plane":
        """Start everything, with so many nodes."""
        started = time.monotonic()
        self._certificates()
        self.ports = {name: free_port() for name in ("etcd", "peer", "api", "kcm", "scheduler", "controller", "hook", "hook-health", "kubelet", "served")}
        self._kubeconfigs()
        self._start_etcd()
        self.start_apiserver()
        self.times["apiserver"] = time.monotonic() - started
        self._create_crds()
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": "volcano-system"}})
        self._start_controller_manager()
        self.times["controller-manager"] = time.monotonic() - started
        self._start_volcano()
        self.times["volcano"] = time.monotonic() - started
        self._start_kwok()
        for number in range(nodes):
            self.add_node(f"npu-{number:03d}")
        self.wait("nodes", lambda: self._ready_nodes() >= nodes)
        self.times["nodes"] = time.monotonic() - started
        self._binder = threading.Thread(target=self._bind_others, daemon=True)
        self._binder.start()
        return self

    def down(self) -> None:
        """Kill everything that was started; etcd last, and by process group, since an apiserver lingers for a minute otherwise."""
        self._stopping.set()
        if self._binder is not None:
            self._binder.join(10)
        for process in reversed(self.processes.values()):
            _kill(process)
        self.processes.clear()

    def stop_apiserver(self) -> None:
        """Take the API server away, as an upgrade does."""
        _kill(self.processes.pop("apiserver"))

    def start_apiserver(self) -> None:
        """Start the API server on its port and wait until it answers."""
        pki, etcd = self.folder / "pki", f"http://127.0.0.1:{self.ports['etcd']}"
        self._spawn(
            "apiserver", self.programs.path("kube-apiserver"), f"--etcd-servers={etcd}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            f"--secure-port={self.ports['api']}", f"--tls-cert-file={pki}/api.crt", f"--tls-private-key-file={pki}/api.key", f"--client-ca-file={pki}/ca.crt",
            f"--token-auth-file={pki}/tokens.csv", "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.pub", f"--service-account-signing-key-file={pki}/sa.key", "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged=true", "--endpoint-reconciler-type=none", "--kubelet-preferred-address-types=InternalIP,Hostname",
            f"--cert-dir={self.folder}/generated", "--event-ttl=1h",
        )
        self.wait("apiserver", lambda: self.request("GET", "/readyz") == "ok")

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{self.ports[name]}" for name in ("etcd", "peer"))
        self._spawn(
            "etcd", self.programs.path("etcd"), "--data-dir", self.folder / "etcd", "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
        )

    def _start_controller_manager(self) -> None:
        pki, config = self.folder / "pki", self.kubeconfig()
        # Not optional: without it there is no garbage collection, no default ServiceAccount (pods are refused) and no quota status.
        wanted = (
            "garbage-collector-controller,namespace-controller,serviceaccount-controller,serviceaccount-token-controller,node-lifecycle-controller,"
            "resourcequota-controller,root-ca-certificate-publisher-controller,persistentvolume-binder-controller"
        )
        self._spawn(
            "controller-manager", self.programs.path("kube-controller-manager"), f"--kubeconfig={config}", f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}", "--bind-address=127.0.0.1", f"--secure-port={self.ports['kcm']}", "--leader-elect=false",
            f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.crt", f"--controllers={wanted}",
        )
        self.wait("service account", lambda: self.request("GET", "/api/v1/namespaces/default/serviceaccounts/default"))

    def _create_crds(self) -> None:
        base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for file in sorted(self.programs.crds.glob("*.yaml")):
            for document in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader):
                if document:
                    self.request("POST", base, document)
        def established() -> bool:
            return all(
                any(c["type"] == "Established" and c["status"] == "True" for c in item.get("status", {}).get("conditions") or [])
                for item in self.request("GET", base)["items"]
            )
        self.wait("CRDs", established)

    def _start_kwok(self) -> None:
        pki = self.folder / "pki"
        stages = (HERE / "stages.yaml").read_text() + _debug_config(self.folder, self.ports["served"])
        (self.folder / "kwok.yaml").write_text(stages)
        self._spawn(
            "kwok", self.programs.path("kwok"), f"--kubeconfig={self.kubeconfig()}", "--manage-all-nodes=true", f"--config={self.folder}/kwok.yaml",
            "--node-ip=127.0.0.1", "--node-name=localhost", f"--node-port={self.ports['kubelet']}", f"--server-address=127.0.0.1:{self.ports['kubelet']}",
            f"--tls-cert-file={pki}/kubelet.crt", f"--tls-private-key-file={pki}/kubelet.key", "--node-lease-duration-seconds=40", "--cidr=10.64.0.0/10",
        )

    def _start_volcano(self) -> None:
        if self.volcano is None:
            self._start_standin()
        else:
            self._start_real_volcano(self.volcano)
        self.wait("queue default", lambda: self.request("GET", "/apis/scheduling.volcano.sh/v1beta1/queues/default").get("status", {}).get("state") == "Open")
        self._register_hooks()
        self.wait("admission", self._hooks_answer)

    def _start_standin(self) -> None:
        pki = self.folder / "pki"
        self._spawn("standin", sys.executable, HERE / "standin_main.py", self.kubeconfig(), self.ports["hook"], pki / "hook.crt", pki / "hook.key")

    def _start_real_volcano(self, programs: Path) -> None:
        config, pki = self.kubeconfig(), self.folder / "pki"
        # A folder of its own: the scheduler watches the whole folder, and a log file in it would make it reload for ever.
        conf = self.folder / "scheduler" / "scheduler.conf"
        conf.parent.mkdir()
        conf.write_text(SCHEDULER_CONF)
        self._spawn(
            "scheduler", programs / "vc-scheduler", f"--kubeconfig={config}", f"--scheduler-conf={conf}", "--leader-elect=false", "--schedule-period=200ms",
            "--scheduler-name=volcano", "--default-queue=default", "--enable-metrics=false", "--enable-healthz=true",
            f"--healthz-address=127.0.0.1:{self.ports['scheduler']}", "--cache-dumper=false", "--csi-storage=false",
        )
        self._spawn(
            "controller", programs / "vc-controller-manager", f"--kubeconfig={config}", "--leader-elect=false",
            "--controllers=job-controller,queue-controller,pg-controller,gc-controller", "--worker-threads=3", "--max-requeue-num=15", "--enable-metrics=false",
            "--enable-healthz=true", f"--healthz-address=127.0.0.1:{self.ports['controller']}",
        )
        self.wait("queue default", lambda: self.request("GET", "/apis/scheduling.volcano.sh/v1beta1/queues/default").get("status", {}).get("state") == "Open")
        self._register_hooks()
        self._spawn(
            "webhooks", programs / "vc-webhook-manager", f"--kubeconfig={config}", f"--tls-cert-file={pki}/hook.crt", f"--tls-private-key-file={pki}/hook.key",
            f"--ca-cert-file={pki}/ca.crt", "--listen-address=127.0.0.1", f"--port={self.ports['hook']}", f"--webhook-url=https://127.0.0.1:{self.ports['hook']}",
            f"--enabled-admission={','.join(HOOKS)}", "--scheduler-name=volcano", "--enable-healthz=true",
            f"--healthz-address=127.0.0.1:{self.ports['hook-health']}",
        )

    def _register_hooks(self) -> None:
        import base64

        ca = base64.b64encode((self.folder / "pki" / "ca.crt").read_bytes()).decode()
        for path, (resource, operations) in HOOKS.items():
            kind = "Mutating" if path.endswith("mutate") else "Validating"
            group, version = ("batch.volcano.sh", "v1alpha1") if resource == "jobs" else ("scheduling.volcano.sh", "v1beta1")
            base = f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations"
            name = "volcano-admission-service" + path.replace("/", "-")
            if any(item["metadata"]["name"] == name for item in self.request("GET", base)["items"]):
                continue
            verb = "mutate" if kind == "Mutating" else "validate"
            self.request("POST", base, {
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind}WebhookConfiguration", "metadata": {"name": name},
                "webhooks": [{
                    "name": f"{verb}{resource.removesuffix('s')}.volcano.sh", "clientConfig": {"url": f"https://127.0.0.1:{self.ports['hook']}{path}", "caBundle": ca},
                    "rules": [{"operations": operations, "apiGroups": [group], "apiVersions": [version], "resources": [resource]}],
                    "admissionReviewVersions": ["v1"], "sideEffects": "NoneOnDryRun", "failurePolicy": "Fail", "timeoutSeconds": 10,
                }],
            })

    def _hooks_answer(self) -> bool:
        task = {"name": "a", "replicas": 1, "template": {"spec": {"containers": [{"name": "c", "image": "x"}]}}}
        probe = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "probe"}, "spec": {"tasks": [task, task]}}
        try:
            self.request("POST", "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs?dryRun=All", probe)
        except PlaneError as error:
            return "duplicated task name" in str(error)
        return False

    # ---- files and processes ---------------------------------------------------------------------------------------

    def _certificates(self) -> None:
        pki = self.folder / "pki"
        pki.mkdir(parents=True)
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _openssl("req", "-x509", *curve, "-keyout", pki / "ca.key", "-out", pki / "ca.crt", "-subj", "/CN=test-ca", "-days", "30")
        for name, names in {
            "api": "IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc,IP:10.0.0.1", "hook": "IP:127.0.0.1,DNS:localhost", "kubelet": "IP:127.0.0.1,DNS:localhost",
        }.items():
            _openssl("req", *curve, "-keyout", pki / f"{name}.key", "-out", pki / f"{name}.csr", "-subj", f"/CN={name}")
            (pki / f"{name}.ext").write_text(f"subjectAltName={names}\n")
            _openssl(
                "x509", "-req", "-in", pki / f"{name}.csr", "-CA", pki / "ca.crt", "-CAkey", pki / "ca.key", "-CAcreateserial", "-days", "30",
                "-extfile", pki / f"{name}.ext", "-out", pki / f"{name}.crt",
            )
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", pki / "sa.key")
        _openssl("ec", "-in", pki / "sa.key", "-pubout", "-out", pki / "sa.pub")
        (pki / "tokens.csv").write_text("".join(f'{user}-token,{user},{number},"{group}"\n' for number, (user, group) in enumerate(USERS.items(), 1)))

    def _kubeconfigs(self) -> None:
        for user in USERS:
            self.kubeconfig(user).write_text(json.dumps({
                "apiVersion": "v1", "kind": "Config", "current-context": user,
                "clusters": [{"name": "plane", "cluster": {"server": self.server, "certificate-authority": str(self.folder / "pki" / "ca.crt")}}],
                "users": [{"name": user, "user": {"token": f"{user}-token"}}],
                "contexts": [{"name": user, "context": {"cluster": "plane", "user": user, "namespace": "default"}}],
            }))

    def _spawn(self, name: str, *command: object) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, start_new_session=True, cwd=self.folder)

    def _ready_nodes(self) -> int:
        ready = 0
        for node in self.request("GET", "/api/v1/nodes")["items"]:
            conditions = {c["type"]: c["status"] for c in node.get("status", {}).get("conditions") or []}
            ready += conditions.get("Ready") == "True" and not node["spec"].get("taints")
        return ready

    def _tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-1500:]


def _debug_config(folder: Path, served: int) -> str:
    """kwok's side of exec, logs and port-forward: commands run here, in a folder that plays the output claim, logs come from files,
    and every port of every pod is one port of this computer.

    A pod called ``logs-worker-N`` has the log ``logs/logs-worker-N``; lines in the form that container runtimes write.
    """
    claim, logs = folder / "claim", folder / "logs"
    for made in (claim, logs):
        made.mkdir()
    documents: list[dict[str, Any]] = [{
        "kind": "ClusterExec", "apiVersion": "kwok.x-k8s.io/v1alpha1", "metadata": {"name": "exec"},
        "spec": {"execs": [{"local": {"workDir": str(claim), "envs": [{"name": "PATH", "value": os.environ["PATH"]}]}}]},
    }]
    for number in range(2):
        name = f"logs-worker-{number}"
        documents.append({
            "kind": "ClusterLogs", "apiVersion": "kwok.x-k8s.io/v1alpha1", "metadata": {"name": name},
            "spec": {"selector": {"matchNames": [name]}, "logs": [{"logsFile": str(logs / name)}]},
        })
    documents.append({
        "kind": "ClusterPortForward", "apiVersion": "kwok.x-k8s.io/v1alpha1", "metadata": {"name": "forward"},
        "spec": {"forwards": [{"target": {"address": "127.0.0.1", "port": served}}]},
    })
    return "".join(f"---\n{json.dumps(document)}\n" for document in documents)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def _openssl(*arguments: object) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise PlaneError("openssl is needed to make certificates (Debian: apt-get install openssl)")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PlaneError(f"openssl {arguments[0]} failed: {done.stderr[-500:]}")
