"""Command lines as values: their words, and what they begin with."""

from __future__ import annotations

import pickle

import pytest

from patcher.messages.command_line import CommandLine, started_as


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("recover",), "rlpatch recover"),
        (("diff", "verl", "--path", "a b"), "rlpatch diff verl --path 'a b'"),
        ((), "rlpatch"),
    ],
)
def test_a_command_line_is_its_words_and_a_text_that_a_shell_takes(words: tuple[str, ...], text: str) -> None:
    line = CommandLine(*words)
    assert (line.words, line) == (words, text)
    back = pickle.loads(pickle.dumps(line))
    assert (back.words, back) == (words, text)


def test_it_begins_with_what_the_process_was_started_as() -> None:
    with started_as("python3 patch.pyz"):
        assert CommandLine("revert") == "python3 patch.pyz revert"
    assert CommandLine("revert") == "rlpatch revert"
