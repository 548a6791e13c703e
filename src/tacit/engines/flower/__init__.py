"""Flower carries the rounds: its simulation on Ray, or SuperLink and SuperNodes on real machines.

Only this package imports Flower. The rounds are those of every engine; here tasks and results become Flower's messages.
"""

from tacit.engines.flower.client_app import Departure, Introduce, OpenWorkspace, Safeguards, Workspace, client_app
from tacit.engines.flower.grid import GridClient, poll_faster, server_app
from tacit.engines.flower.lost_task import report_lost_task
from tacit.engines.flower.messages import SCHEMA, NodeInfo, RunInfo
from tacit.engines.flower.nodes import ClientNodes
from tacit.engines.flower.pinned import bind_client
from tacit.engines.flower.simulation import SimulationTransport, simulated
from tacit.engines.flower.site_scores import ask_for_scores
from tacit.engines.flower.transport import FlowerTransport

__all__ = [
    "SCHEMA",
    "ClientNodes",
    "Departure",
    "FlowerTransport",
    "GridClient",
    "Introduce",
    "NodeInfo",
    "OpenWorkspace",
    "RunInfo",
    "Safeguards",
    "SimulationTransport",
    "Workspace",
    "ask_for_scores",
    "bind_client",
    "client_app",
    "poll_faster",
    "report_lost_task",
    "server_app",
    "simulated",
]
