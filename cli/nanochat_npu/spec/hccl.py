"""Settings of HCCL (Huawei's collectives) with the ranges it accepts; a value outside is EI0001 on every rank, minutes later.

Ranges and defaults for Atlas A2: CANN's HCCL guide, ``hccl_env/<NAME>.md`` (hicann/hccl at 09300b70). Fields that are null
are not set, so HCCL's own default holds.
"""

from typing import Annotated, Literal

from pydantic import Field

from nanochat_npu.spec.types import Strict

__all__ = ["HcclConfig"]


class HcclConfig(Strict):
    """HCCL environment; every rank gets the same values."""

    connect_timeout_s: Annotated[int, Field(ge=120, le=7200)] = Field(
        1200, description="HCCL_CONNECT_TIMEOUT. HCCL's default of 120 s is the field's most reported failure; Huawei recommends 1200 for training."
    )
    exec_timeout_s: Annotated[int, Field(ge=0, le=2_147_483_647)] = Field(1836, description="HCCL_EXEC_TIMEOUT: wait for a peer inside a collective; 0 = for ever.")
    socket_family: Literal["AF_INET", "AF_INET6"] | None = Field(None, description="HCCL_SOCKET_FAMILY; HCCL's default is AF_INET.")
    if_base_port: Annotated[int, Field(ge=1024, le=65520)] | None = Field(None, description="HCCL_IF_BASE_PORT: first of 32 host ports; HCCL's default is 60000.")
    host_socket_port_range: Annotated[str, Field(pattern=r"^(auto|\d+(-\d+)?(,\d+(-\d+)?)*)$")] | None = Field(
        None, description="HCCL_HOST_SOCKET_PORT_RANGE; for several jobs on one host."
    )
    npu_socket_port_range: Annotated[str, Field(pattern=r"^(auto|\d+(-\d+)?(,\d+(-\d+)?)*)$")] | None = Field(
        None, description="HCCL_NPU_SOCKET_PORT_RANGE; for several processes on one NPU (driver 25.0.RC1 or later)."
    )
    whitelist_disable: bool = Field(True, description="HCCL_WHITELIST_DISABLE.")
    buffsize_mb: Annotated[int, Field(ge=1)] | None = Field(
        None, description="HCCL_BUFFSIZE: MB per buffer; each communicator takes two of them from the NPU's memory. HCCL's default is 200."
    )
    deterministic: Literal["false", "true", "strict"] | None = Field(None, description="HCCL_DETERMINISTIC.")
    algo: str | None = Field(None, description="HCCL_ALGO; best left to HCCL.")
    op_expansion_mode: Literal["HOST", "HOST_TS", "AI_CPU", "AIV"] | None = Field(None, description="HCCL_OP_EXPANSION_MODE; HCCL's default on A2 is HOST.")
    intra_roce: bool | None = Field(None, description="HCCL_INTRA_ROCE_ENABLE; Atlas 200T A2 Box16 and 300T Pro only.")
    rdma_traffic_class: Annotated[int, Field(ge=0, le=255, multiple_of=4)] | None = Field(None, description="HCCL_RDMA_TC; must match the switches. HCCL's default is 132.")
    rdma_service_level: Annotated[int, Field(ge=0, le=7)] | None = Field(None, description="HCCL_RDMA_SL; HCCL's default is 4.")
    rdma_timeout: Annotated[int, Field(ge=5, le=20)] | None = Field(None, description="HCCL_RDMA_TIMEOUT: 4.096 us x 2^value; HCCL's default is 20.")
    rdma_retry_count: Annotated[int, Field(ge=1, le=7)] | None = Field(None, description="HCCL_RDMA_RETRY_CNT; HCCL's default is 7.")
    rdma_qps_per_connection: Annotated[int, Field(ge=1, le=32)] | None = Field(None, description="HCCL_RDMA_QPS_PER_CONNECTION; HCCL's default is 1.")
    op_retry: Annotated[str, Field(pattern=r"^L\d:[01](,\s*L\d:[01])*$")] | None = Field(None, description="HCCL_OP_RETRY_ENABLE, for example L1:1,L2:0.")

    def env(self) -> dict[str, str]:
        """The variables to set, by name; only those that have a value."""
        values = {name: getattr(self, attribute) for attribute, name in _ENV.items()}
        return {name: _text(value) for name, value in values.items() if value is not None}

    @staticmethod
    def variables() -> dict[str, str]:
        """Every variable that a field stands for, and that field's name."""
        return {name: attribute for attribute, name in _ENV.items()}


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


_ENV = {
    "connect_timeout_s": "HCCL_CONNECT_TIMEOUT",
    "exec_timeout_s": "HCCL_EXEC_TIMEOUT",
    "socket_family": "HCCL_SOCKET_FAMILY",
    "if_base_port": "HCCL_IF_BASE_PORT",
    "host_socket_port_range": "HCCL_HOST_SOCKET_PORT_RANGE",
    "npu_socket_port_range": "HCCL_NPU_SOCKET_PORT_RANGE",
    "whitelist_disable": "HCCL_WHITELIST_DISABLE",
    "buffsize_mb": "HCCL_BUFFSIZE",
    "deterministic": "HCCL_DETERMINISTIC",
    "algo": "HCCL_ALGO",
    "op_expansion_mode": "HCCL_OP_EXPANSION_MODE",
    "intra_roce": "HCCL_INTRA_ROCE_ENABLE",
    "rdma_traffic_class": "HCCL_RDMA_TC",
    "rdma_service_level": "HCCL_RDMA_SL",
    "rdma_timeout": "HCCL_RDMA_TIMEOUT",
    "rdma_retry_count": "HCCL_RDMA_RETRY_CNT",
    "rdma_qps_per_connection": "HCCL_RDMA_QPS_PER_CONNECTION",
    "op_retry": "HCCL_OP_RETRY_ENABLE",
}
