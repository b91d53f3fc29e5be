# A CPU image for trials and CI, from a checkout: docker build -f docker/cpu.Dockerfile -t nanochat-cpu .
# On x86 give TORCH_INDEX, an index of CPU builds of torch: the package index has the CUDA build only, 4.8 GB.
# For NPUs use `nanochat-npu build` instead: it makes an image for one CANN and one torch_npu.
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG TORCH=2.12.0 TORCH_INDEX= PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off SOURCE_DATE_EPOCH=315532800

RUN getent group 1000 >/dev/null || groupadd -g 1000 nanochat; \
    getent passwd 1000 >/dev/null || useradd -u 1000 -g 1000 -m -s /bin/bash nanochat

COPY cli/nanochat_npu/image/requirements.lock /opt/nanochat/requirements.lock
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip install --no-deps --only-binary :all: --require-hashes -r /opt/nanochat/requirements.lock
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -c 'import torch' 2>/dev/null || python3 -m pip install --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch==$TORCH"

# Last, so that a change of code makes this layer only.
COPY templates/entrypoint.sh /opt/nanochat/entrypoint.sh
COPY nanochat /opt/nanochat/code/nanochat
ENV PYTHONPATH=/opt/nanochat/code
RUN PYTHONDONTWRITEBYTECODE=1 python3 -m nanochat --version && PYTHONDONTWRITEBYTECODE=1 python3 -c 'import torch'

USER 1000
WORKDIR /
ENTRYPOINT ["bash", "/opt/nanochat/entrypoint.sh"]
CMD ["launch"]
