"""The quotas of the caller over HTTP."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from holdfast.server.auth import Reader
from holdfast.server.errors import ERRORS
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.quotas import describe_quotas
from holdfast.server.schemas import responses
from holdfast.server.schemas.serializers import json_response

router = APIRouter(route_class=StrictRoute, tags=["operations"], responses=ERRORS)


@router.get("/quota", operation_id="get_quota", summary="Limits of the caller", response_model=responses.Quotas)
def get_quota(caller: Reader) -> Response:
    """The limits of the caller's tenant and user, what is used of them and what is left. Without limits an empty
    list."""
    return json_response({"quotas": describe_quotas(caller.store)})
