"""Tell a SuperNode that a client process ended without finishing its task, which it would notice after a minute."""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import PushTaskOutputRequest
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient


def report_lost_task(arguments: Sequence[str]) -> None:
    """Finish the task of a process with these arguments as failed; nothing if it has finished or has no task."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime-api-address")
    parser.add_argument("--token-file", type=Path)
    given, _ = parser.parse_known_args(list(arguments))
    if not given.runtime_api_address or not given.token_file:
        return
    client = RuntimeHttpClient.from_server_address(
        server_address=given.runtime_api_address,
        insecure=True,  # the SuperNode's own port, on this machine
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(given.token_file.read_text(encoding="ascii").strip()),
        ],
    )
    with suppress(httpx.HTTPError, OSError):
        client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="The process ended."))
    client.close()
