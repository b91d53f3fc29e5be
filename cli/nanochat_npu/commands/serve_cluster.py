"""What ``serve`` and ``chat`` do for a job on a cluster: start a server there, forward its port, talk to it."""

import time

from nanochat_npu import console, units
from nanochat_npu.backends import ENDED, JobState
from nanochat_npu.backends.volcano import VolcanoBackend
from nanochat_npu.cluster.forward import Forward
from nanochat_npu.cluster.read import pods_of, read_job
from nanochat_npu.cluster.serving import PORT, SUFFIX, Server, server_objects
from nanochat_npu.cluster.submit import Order, Sender
from nanochat_npu.conversing import Conversation
from nanochat_npu.errors import JobFailed, JobNotFound
from nanochat_npu.i18n import _
from nanochat_npu.job_state import JobObjects, owned_pods
from nanochat_npu.partial import text
from nanochat_npu.quoting import TEMPLATES
from nanochat_npu.talk import wait_until_ready

__all__ = ["Server", "chat_on_cluster", "serve_on_cluster"]

POLL_S = 1.0


def serve_on_cluster(backend: VolcanoBackend, job: str, server: Server, *, local_port: int | None) -> None:
    """Start a server for a job's model, or find the one that runs; with `local_port`, forward it until Ctrl-C.

    Raises:
        JobFailed: The server ended before it answered.
    """
    name = start(backend, job, server)
    if local_port is None:
        console.say(_("{name} is starting; it leaves after {time} without a request").format(name=name, time=units.duration(server.idle_ttl_s)))
        console.say(_("next: nanochat-npu chat {job}, or stop it: nanochat-npu cancel {name} --delete").format(job=job, name=name))
        return
    pod = await_pod(backend, name)
    with Forward(backend.kube, backend.namespace, pod, PORT, local_port) as forward:
        console.data(forward.url)
        console.say(_("Ctrl-C ends the forwarding; the server stays until nobody asks it any more"))
        while backend.get(name).state not in ENDED:
            time.sleep(10 * POLL_S)


def chat_on_cluster(backend: VolcanoBackend, job: str, server: Server, prompt: str | None) -> None:
    """Talk to a job's model on the cluster; starts a server for it if there is none."""
    name = start(backend, job, server)
    pod = await_pod(backend, name)
    with Forward(backend.kube, backend.namespace, pod, PORT) as forward:
        console.say(_("loading the model …"))
        while not wait_until_ready(forward.url):
            view = backend.get(name)
            if view.state in ENDED:
                raise JobFailed(view.reason or _("the server has ended"), where=name, hint=_("nanochat-npu logs {name}").format(name=name))
            time.sleep(POLL_S)
        conversation = Conversation(forward.url)
        if prompt is not None:
            conversation.ask(prompt)
        else:
            conversation.run()


def start(backend: VolcanoBackend, job: str, server: Server) -> str:
    """Name of a server job for this job that runs or is about to."""
    found = read_job(backend.kube, backend.namespace, job)
    try:
        running = backend.get(job + SUFFIX)
        if running.state in (JobState.PENDING, JobState.RUNNING):
            return running.name
    except JobNotFound:
        pass
    name, identity, objects = server_objects(found, server, (TEMPLATES / "entrypoint.sh").read_text(encoding="utf-8"))
    sender = Sender(backend.kube, write_receipt=lambda _job: None, now_s=time.time())
    sender.send(Order(name, backend.namespace, identity, objects, rerun=True))
    return name


def await_pod(backend: VolcanoBackend, name: str) -> str:
    """Name of the server's pod once it runs.

    Raises:
        JobFailed: The server ended before.
    """
    said = ""
    while True:
        view = backend.get(name)
        if view.state in ENDED:
            raise JobFailed(view.reason or _("the server has ended"), where=name, hint=_("nanochat-npu logs {name}").format(name=name))
        job = read_job(backend.kube, backend.namespace, name)
        for pod in owned_pods(JobObjects(job, None, pods_of(backend.kube, backend.namespace, name))):
            if text(pod, "status", "phase") == "Running":
                return text(pod, "metadata", "name")
        if view.reason != said:
            said = view.reason
            console.say(_("waiting for the server: {reason}").format(reason=said or view.state))
        time.sleep(POLL_S)
