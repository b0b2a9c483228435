"""A reader runs README.md, then every page, then everything again, in one directory: nothing fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.test_docs import PAGES, ROOT

RUN_PAGE = "from tests.docs.pages import run_page; run_page()"
UNSET = ("HOLDFAST_STORE", "HOLDFAST_TOKEN", "HOLDFAST_MODEL", "HOLDFAST_KEY")


def test_the_pages_run_one_after_the_other_and_again_in_one_directory(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    environment |= {"HOLDFAST_DATA": str(tmp_path / "data"), "TMPDIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    failures = []
    for time in ("first", "second"):
        for page in PAGES:  # each in a process of its own, as a reader runs them
            found = subprocess.run(
                [sys.executable, "-c", RUN_PAGE, str(page)],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if found.returncode:
                failures.append(f"{page.name}, {time} time:\n{found.stderr[-2000:]}")
    assert failures == [], "\n\n".join(failures)
