"""`holdfast.__version__`: the version of the installed package, read when it is asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import holdfast


def test_the_version_is_that_of_the_installed_package_and_of_the_command() -> None:
    assert holdfast.__version__ == version("holdfast")
    command = [sys.executable, "-c", "from holdfast.cli.main import main; main()", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.split()[-1] == holdfast.__version__


def test_importing_holdfast_does_not_read_the_metadata_of_packages() -> None:
    script = "import sys, holdfast; print('importlib.metadata' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
