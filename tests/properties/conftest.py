"""How hypothesis runs here: no deadlines, because a busy machine is no bug, and a failure tells how to repeat it."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("holdfast", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")
