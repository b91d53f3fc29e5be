#!/usr/bin/env bash
# Starts one worker (part of nanochat-npu): loads CANN's environment, tells this worker from the others, hands over.
# Everything that needs thought is in `python -m nanochat launch`.

# Not `set -u`: CANN's set_env.sh reads variables that may be unset.
set -o pipefail

# A Kubernetes `command:` replaces the ENTRYPOINT by which CANN images load their environment, so it is loaded here.
# The toolkit's script moved between versions; newer images have both places, and one is enough.
ascend_root=${NANOCHAT_ASCEND_ROOT:-/usr/local/Ascend}
for script in "$ascend_root/cann/set_env.sh" "$ascend_root/ascend-toolkit/set_env.sh"; do
    if [ -r "$script" ]; then
        # shellcheck source=/dev/null
        . "$script"
        break
    fi
done
if [ -r "$ascend_root/nnal/atb/set_env.sh" ]; then
    # shellcheck source=/dev/null
    . "$ascend_root/nnal/atb/set_env.sh"
fi

# Volcano, MindCluster's operator and torchrun set these with three different meanings (pods, NPUs, ranks; LOCAL_RANK may be a list).
unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE

# What Volcano's plugins env and svc say about this worker; a value that is already there wins (docker run, tests).
: "${NANOCHAT_NODE_RANK:=${VC_TASK_INDEX:-0}}"
: "${NANOCHAT_MASTER_ADDR:=${VC_WORKER_HOSTS%%,*}}"
: "${NANOCHAT_MASTER_ADDR:=127.0.0.1}"
export NANOCHAT_NODE_RANK NANOCHAT_MASTER_ADDR

# Volcano counts restarts in an annotation (1.10 and later); before that the launcher counts by the job's folder.
if [ -n "${NANOCHAT_RETRY_COUNT:-}" ] && [ -z "${NANOCHAT_ATTEMPT:-}" ]; then
    export NANOCHAT_ATTEMPT="$NANOCHAT_RETRY_COUNT"
fi

# CANN's own logs die with the pod unless they are on the output volume.
if [ -n "${NANOCHAT_JOB_DIR:-}" ] && [ -z "${ASCEND_PROCESS_LOG_PATH:-}" ]; then
    export ASCEND_PROCESS_LOG_PATH="$NANOCHAT_JOB_DIR/plog/worker$NANOCHAT_NODE_RANK"
fi

# `exec`: the launcher gets the pod's SIGTERM itself, and its exit code is the container's.
if [ $# -eq 0 ]; then
    set -- launch
fi
exec "${NANOCHAT_PYTHON:-python3}" -m nanochat "$@"
