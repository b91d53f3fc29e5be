"""Error codes of Ascend's stack in a log: what they mean and what to do first.

Sources: HCCL user guide ``fault_diagnosis/*`` (EI, EJ), TorchNPU's error form ``ERRmmccc``, runtime codes as met in public
threads (named where one code rests on them). Texts are ours.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nanochat_npu.explain.facts import Who
from nanochat_npu.i18n import _

__all__ = ["CODES", "CodeMeaning", "find_codes"]


@dataclass(frozen=True)
class CodeMeaning:
    """One code: what it says and what to look at first."""

    code: str
    meaning: str
    action: str
    who: Who = Who.YOU


def _codes() -> list[CodeMeaning]:
    return [
        CodeMeaning("EI0001", _("an HCCL_* value is out of range, or the interface named by HCCL_SOCKET_IFNAME does not exist"), _("check network.interface and the hccl block of the spec: nanochat-npu validate")),
        CodeMeaning("EI0002", _("a collective waited too long for another rank"), _("look at the rank that stopped first: nanochat-npu logs JOB --first-failure")),
        CodeMeaning("EI0003", _("a collective was called with wrong arguments"), _("report it with nanochat-npu collect JOB"), Who.US),
        CodeMeaning("EI0004", _("HCCL refuses the rank table"), _("nanochat-npu ranktable validate FILE names the rule that is broken")),
        CodeMeaning("EI0005", _("ranks disagree on arguments or on the rank table"), _("all workers must run the same image, spec and table: submit again")),
        CodeMeaning("EI0006", _("the sockets between NPUs were not connected in time: a worker was late, a link is down, or TLS differs"), _("compare the workers' start times in nanochat-npu status; then hccn_tool -i N -link -g on the nodes"), Who.ADMIN),
        CodeMeaning("EI0007", _("HCCL could not get a resource on the device"), _("another process may hold the NPU: npu-smi info on that node"), Who.ADMIN),
        CodeMeaning("EI0008", _("workers run different versions of CANN"), _("use one image, by digest, for all workers")),
        CodeMeaning("EI0011", _("no memory is left for RDMA queue pairs"), _("lower HCCL_BUFFSIZE or the number of groups")),
        CodeMeaning("EI0012", _("a copy between NPUs of one server failed (SDMA)"), _("the NPU or a link inside the server is faulty: npu-smi info"), Who.ADMIN),
        CodeMeaning("EI0013", _("an RDMA transfer failed: a link flapped or the peer left"), _("hccn_tool -i N -link_stat -g on both nodes; if a peer left, look at that one first"), Who.ADMIN),
        CodeMeaning("EI0014", _("an address in the rank table is not the NPU's own"), _("make the table anew: nanochat-npu ranktable generate")),
        CodeMeaning("EI0015", _("the ranks did not find each other in time; the log lists the missing ones"), _("check that all workers run and that network.interface is right")),
        CodeMeaning("EI0016", _("TLS is on at some NPUs and off at others"), _("compare hccn_tool -i N -tls -g on all nodes"), Who.ADMIN),
        CodeMeaning("EI0019", _("a port for HCCL is taken on this host or NPU"), _("another job or an old process is on the node; network.host: false avoids it")),
        CodeMeaning("EJ0003", _("a port for HCCL is taken on this host or NPU"), _("another job or an old process is on the node; network.host: false avoids it")),
        CodeMeaning("EJ0001", _("HCCL's helper process did not start: an earlier training process may still be on the NPU"), _("wait ten seconds and submit again; else npu-smi info shows the process"), Who.ADMIN),
        CodeMeaning("EH9999", _("CANN could not start; often one of its own Python packages is missing in the image"), _("build the image with nanochat-npu build, which installs them")),
        CodeMeaning("107001", _("a device id does not exist in this container"), _("the pod sees fewer NPUs than ranks: check resources.npus_per_node and the device plugin"), Who.ADMIN),
        CodeMeaning("500001", _("CANN's runtime failed to start: driver and CANN do not fit, or kernels are missing"), _("compare the node's driver with image.cann: nanochat-npu doctor"), Who.ADMIN),
        CodeMeaning("507015", _("a compute kernel crashed on the NPU"), _("run again with ASCEND_LAUNCH_BLOCKING=1 for a true stack")),
        CodeMeaning("507018", _("a compute kernel crashed on the NPU"), _("run again with ASCEND_LAUNCH_BLOCKING=1 for a true stack")),
        CodeMeaning("507034", _("a vector kernel ran into a time limit"), _("run again with ASCEND_LAUNCH_BLOCKING=1 for a true stack")),
        CodeMeaning("507035", _("a vector kernel crashed on the NPU"), _("run again with ASCEND_LAUNCH_BLOCKING=1 for a true stack")),
        CodeMeaning("507046", _("waiting for the device took too long: usually one rank was busy elsewhere (data, tokenizer) or gone"), _("look at the rank that stopped first: nanochat-npu logs JOB --first-failure")),
        CodeMeaning("507048", _("a task on the NPU ran into its time limit"), _("look at the rank that stopped first: nanochat-npu logs JOB --first-failure")),
        CodeMeaning("561103", _("kernels are missing in the image, or are of another version"), _("image.cann, torch_npu and the chip must fit: nanochat-npu image matrix")),
        CodeMeaning("161002", _("an operator was given a type that it does not support"), _("report it with nanochat-npu collect JOB"), Who.US),
        CodeMeaning("-8005", _("the NPU is held by another container, or rights are missing"), _("npu-smi info on the node shows who holds it"), Who.ADMIN),
        CodeMeaning("ra init failed", _("uid 1000 has no entry in the image's /etc/passwd"), _("build the image with nanochat-npu build, or set security.run_as_user: 0")),
        CodeMeaning("libhccl.so", _("CANN's libraries are not on the path: its environment was not sourced"), _("use the rendered entrypoint, or an image that has CANN")),
        CodeMeaning("libascend_hal.so", _("the NPU driver is not in the container"), _("the Ascend runtime is not the container runtime: set cluster.driver_mount: hostpath"), Who.ADMIN),
        CodeMeaning("undefined symbol", _("torch, torch_npu and CANN are not the ones that belong together"), _("nanochat-npu image matrix shows which do")),
        CodeMeaning("Cannot re-initialize NPU", _("a process was forked after it had used the NPU"), _("report it with nanochat-npu collect JOB"), Who.US),
        CodeMeaning("NPU out of memory", _("the NPU's memory is full"), _("lower run.pretrain.device_batch; nanochat-npu plan names one that fits")),
    ]


CODES: tuple[str, ...] = tuple(item.code for item in _codes())
"""All codes that are known."""

_ERR_MODULES = {"00": "torch_npu", "01": "operators", "02": "HCCL", "03": "graph", "04": "profiler"}
_ERR = re.compile(r"\bERR(\d\d)(\d\d\d)\b")


def find_codes(lines: Iterable[str]) -> list[tuple[CodeMeaning, str]]:
    """The codes in a log, each once, in the order of their first line; paired with that line.

    A general ``ERRmmccc`` of TorchNPU comes last: it only wraps the code that matters.
    """
    known = _codes()
    found: dict[str, tuple[CodeMeaning, str]] = {}
    wrapped: tuple[CodeMeaning, str] | None = None
    for line in lines:
        for item in known:
            if item.code not in found and _mentions(line, item.code):
                found[item.code] = (item, line.strip())
        match = _ERR.search(line)
        if match and wrapped is None:
            module = _ERR_MODULES.get(match.group(1), match.group(1))
            meaning = _("an error of {module} that torch_npu passes on").format(module=module)
            wrapped = (CodeMeaning(match.group(0), meaning, _("the lines before it name the cause")), line.strip())
    return [*found.values(), *([wrapped] if wrapped else [])]


def _mentions(line: str, code: str) -> bool:
    """True if the code stands in the line by itself: not as part of a longer number or word."""
    start = line.find(code)
    while start >= 0:
        before, after = line[start - 1 : start], line[start + len(code) : start + len(code) + 1]
        if not (before.isalnum() and code[0].isalnum()) and not (after.isdigit() and code[-1].isdigit()):
            return True
        start = line.find(code, start + 1)
    return False
