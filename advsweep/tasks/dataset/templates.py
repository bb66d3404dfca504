"""Named templates that make a prompt of a question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from advsweep.errors import ConfigError, nearest

QUESTION, TESTS = "{question}", "{tests}"


@dataclass(frozen=True)
class Template:
    """The text around a question.

    Attributes:
        text: text with `{question}` in it, and for programs `{tests}`.
        system: the system message, as in `Problem.system`.
        source: the paper that prints it.
    """

    text: str
    system: str = ""
    source: str = "ours"

    def fill(self, question: str, tests: str) -> str:
        # Not str.format, because templates and questions contain braces of LaTeX.
        before, _, after = self.text.partition(QUESTION)
        return before.replace(TESTS, tests) + question + after.replace(TESTS, tests)


_BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
_THINKING = (
    "You FIRST think about the reasoning process as an internal monologue and then provide the "
    "user with the answer. The reasoning process MUST BE enclosed within <think> and </think> tags."
)

TEMPLATES: Mapping[str, Template] = {
    "plain": Template(QUESTION),
    "boxed": Template(f"{QUESTION}\n{_BOXED}\n"),
    "boxed_system": Template(QUESTION, system=_BOXED, source="A-GRAE, App. C.2; AVSPO, App. D"),
    "two_stage": Template(
        f"{QUESTION}\n{_BOXED}\n",
        system="You are a helpful assistant.",
        source="Two-stage view, App. C.2",
    ),
    "aapo_1_5b": Template(
        QUESTION,
        system=(
            "A conversation between User and Assistant. The user asks a question, and the "
            "Assistant solves it. The assistant first thinks about the reasoning process in the "
            "mind and then provides the user with the answer, and put your final answer within "
            "\\boxed. The reasoning process and answer are enclosed within <think></think> and "
            "<answer></answer> tags, respectively, i.e., <think>reasoning process here "
            "</think><answer>answer here </answer>. Note that respond by English, NOT use other "
            "languages."
        ),
        source="AAPO, App. C.2",
    ),
    "aapo_7b": Template(
        QUESTION,
        system=(
            "You are a helpful AI Assistant, designed to provided well-reasoned and detailed "
            f"responses. {_THINKING}"
        ),
        source="AAPO, App. C.2",
    ),
    "aapo_evaluation": Template(
        QUESTION,
        system=(
            "Solve the following math problem efficiently and clearly. The last line of your "
            "response should be of the following format: 'Therefore, the final answer is: "
            "$\\boxed{ANSWER}$. I hope it is correct' (without quotes) where ANSWER is just the "
            "final number or expression that solves the problem. Think step by step before "
            "answering."
        ),
        source="AAPO, App. C.3",
    ),
    "choice": Template(
        f"{QUESTION}\nPlease reason step by step, and put the letter of your choice within "
        "\\boxed{}.\n"
    ),
    "code": Template(
        f"{QUESTION}\nThe code has to pass these tests:\n{TESTS}\nAnswer with one block of Python, "
        "between ```python and ```.\n"
    ),
}


def template(name: str) -> Template:
    """Return the template of a name, or a new one from a text with `{question}` in it.

    Raises:
        ConfigError: there is no template of this name.
    """
    if QUESTION in name:
        return Template(name, source="own")
    if name in TEMPLATES:
        return TEMPLATES[name]
    raise ConfigError(
        f"prompt: expected a text with {QUESTION} in it or the name of a template, got '{name}'; "
        f"{nearest(name, TEMPLATES)}"
    )
