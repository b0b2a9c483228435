"""Liveness, readiness and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from holdfast.server.auth import Anyone, Operator
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.schemas.responses import HealthShape, ReadyShape
from holdfast.server.schemas.serializers import json_response

router = APIRouter(
    route_class=StrictRoute, tags=["operations"], responses={each: ERRORS[each] for each in (400, 403, 429)}
)


@router.get("/health", dependencies=[Anyone], response_model=HealthShape, operation_id="health")
async def health() -> Response:
    """The process answers."""
    return json_response({"status": "ok"})


@router.get(
    "/ready",
    dependencies=[Anyone],
    response_model=ReadyShape,
    responses={503: {"model": ReadyShape, "description": "Draining, or the store is away."}},
    operation_id="ready",
)
async def ready(request: Request) -> Response:
    """Whether requests should be sent here: the store answers, and nothing is being shut down."""
    why = await request.app.state.server.unavailable_reason()
    if why is None:
        return json_response({"status": "ready", "reason": None})
    return json_response({"status": "unavailable", "reason": why}, 503, {"Retry-After": "1"})


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, 401: ERRORS[401]},
)
async def metrics(caller: Operator, request: Request) -> Response:
    """Counters and histograms for Prometheus."""
    server = request.app.state.server
    server.update_gauges()
    return Response(server.metrics.render(), media_type=server.metrics.CONTENT_TYPE)
