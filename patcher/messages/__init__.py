"""Values that become text at the edge: a problem, a note, the next command, a report, a table; and its language.

What every command needs of them is imported from here.
"""

from patcher.messages.command_line import CommandLine
from patcher.messages.errors import Kind, Problem, permission_problem, problem_of, usage
from patcher.messages.notes import Message, Note, Warned
from patcher.messages.report import CommandResult, Detail, StepResult, Verbatim
from patcher.messages.text import AND, COMMA, OR, SEMICOLON, Text, joined, processes_text, sentences, steps_text

__all__ = [
    "AND", "COMMA", "OR", "SEMICOLON", "CommandLine", "CommandResult", "Detail", "Kind", "Message", "Note", "Problem",
    "StepResult", "Text", "Verbatim", "Warned", "joined", "permission_problem", "problem_of", "processes_text",
    "sentences", "steps_text", "usage",
]  # fmt: skip
