"""The examples with several agents: each is run as a reader runs it, with no key and no network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_example(name: str) -> list[str]:
    """The lines that an example prints."""
    assert f"python -m examples.{name}" in (ROOT / "Makefile").read_text()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    command = [sys.executable, "-m", f"examples.{name}"]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stderr == ""
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]


def list_authors(lines: list[str]) -> list[str]:
    return [line.split(":")[0] for line in lines]


def test_a_writer_and_a_reviewer_go_on_until_the_draft_is_good() -> None:
    lines = run_example("writer_reviewer")
    assert list_authors(lines[:7]) == ["user", "writer", "reviewer", "writer", "reviewer", "writer", "reviewer"]
    assert lines[6] == "reviewer: The draft is good."
    assert lines[7] == "3 rounds, ended by the condition."
    assert lines[8].removeprefix("The draft: ") == lines[5].removeprefix("writer: ")
    assert "7 messages, the question once" in lines[9]


def test_a_support_desk_hands_over_and_back_and_asks_a_person_for_a_refund() -> None:
    lines = run_example("support_desk")
    assert "triage: Hello Alice, what can we do for you?" in lines
    waits = next(at for at, line in enumerate(lines) if "waits for a person: refund" in line)
    assert "19.99 EUR for order 17" in lines[waits + 1]  # not before the person said yes
    assert not any("19.99 EUR" in line for line in lines[:waits])
    opened = lines.index("The next day, the file is opened again: 8 messages, and it is billing's.")
    (answer,) = [line for line in lines[opened:] if line.startswith("tech: ")]
    assert "Alice" in answer  # it knows what was said to the others
    assert "order 17" in answer
    assert lines[-3:] == [
        "The conversation is tech's now.",
        "Handed over: triage to billing, billing to triage, triage to tech.",
        "Approved: 1, by boss. The log verifies: True.",
    ]


def test_a_killed_pipeline_goes_on_and_what_it_found_is_known_later() -> None:
    lines = run_example("research_pipeline")
    killed = lines.index("2. It is killed (kill -9) while the analyst computes. Another one looks:")
    later = lines.index("3. A week later, in another session and another process:")
    before, after = lines[:killed], lines[killed:later]
    assert "assam_researcher: Assam: 410 cups at 2.40" in before
    assert "sencha_researcher: Sencha: 265 cups at 3.10" in before
    assert not any("researcher: " in line for line in after)
    assert "asked by this process: analyst, writer; what the others said was in the log" in after
    assert "the tool ran 2 times, under 1 key; the log verifies: True" in after
    report = "Assam earns more than Sencha: 984.00 against 821.50."
    assert f"writer: {report}" in after
    assert any(line.startswith(f"remembered: {report}") for line in after)
    assert lines[-1] == f"advisor: We found out before: {report}"
