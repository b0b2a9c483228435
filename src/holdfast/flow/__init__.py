"""Several agents in one session: in order, at once, in rounds, chosen by a model, or one in place of another.

A flow is an agent: it is run, streamed, resumed and nested like one. These classes only say who is asked when; the loop
walks what they say, and one turn of the session is one run of the whole flow.
"""

from holdfast.flow.loop import LoopAgent, exit_loop
from holdfast.flow.parallel import ParallelAgent
from holdfast.flow.routing import Router, RoutingAgent
from holdfast.flow.sequential import SequentialAgent

__all__ = ["LoopAgent", "ParallelAgent", "Router", "RoutingAgent", "SequentialAgent", "exit_loop"]
