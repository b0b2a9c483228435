"""Texts of unknown authors inside a larger text, such as a prompt: none of their lines can pass for one of ours."""

from __future__ import annotations


def one_line(text: str) -> str:
    """Return a text on one line. Every line end that Unicode knows becomes a space, and so does every run of spaces."""
    return " ".join(text.split())


def indent_lines(text: str) -> str:
    """Return a text whose further lines are indented, after every line end that Unicode knows."""
    return "\n  ".join(text.splitlines())
