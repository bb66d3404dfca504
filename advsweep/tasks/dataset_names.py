"""Names that columns of problems usually have, likelier ones first, and columns by their names.

Names are in lower case, without all but letters and digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from advsweep.tasks.dataset_cells import decoded

Rows = Sequence[dict[str, Any]]

_DEPTH = 3  # of entries of objects
_ACCENTED = re.compile("[à-ÿ]")

# In Chinese, Japanese, Korean, Russian, Spanish, Portuguese, Italian, German and French; English
# names come first.
_QUESTIONS_ABROAD = (
    "问题",
    "題目",
    "题目",
    "問題",
    "질문",
    "문제",
    "вопрос",
    "pregunta",
    "pergunta",
    "domanda",
    "frage",
    "aufgabe",
    "énoncé",
)
_GOLDS_ABROAD = (
    "答案",
    "答え",
    "정답",
    "ответ",
    "respuesta",
    "resposta",
    "risposta",
    "antwort",
    "réponse",
)

# docs/datasets.md has these lists, and a test compares them.
QUESTIONS = (
    "question",
    "problem",
    "prompt",
    "query",
    "instruction",
    "questiontext",
    "problemtext",
    "problemstatement",
    "questioncontent",
    "questionstem",
    "stem",
    "problemdescription",
    "description",
    "puzzle",
    "quiz",
    "riddle",
    "task",
    "squestion",
    "goal",
    "sentence",
    "ctx",
    "message",
    "messages",
    "conversation",
    "conversations",
    "input",
    "inputs",
    "text",
    "content",
    "q",
    *_QUESTIONS_ABROAD,
)
CONTEXTS = (
    "body",
    "context",
    "passage",
    "paragraph",
    "article",
    "story",
    "premise",
    "background",
    "document",
    "puzzle",
    "scenario",
)
OPTIONS = ("options", "choices", "answerchoices", "answeroptions", "endings", "candidates")
# Columns of one option each: a prefix and a letter or a number.
OPTION_COLUMN = re.compile(
    r"(?i:(?P<name>options?|opt|op|choices?|answer|ans|ending|sol|alternative))?[\W_]?"
    r"(?P<label>[A-Za-z]|[0-9]{1,2})"
)
# The right option, and wrong ones.
RIGHT_OPTIONS = ("correctanswer", "correctoption", "correct", "rightanswer", "bestanswer")
WRONG_OPTION = re.compile(r"(?:incorrectanswer|distractor|wronganswer|incorrectoption)s?[0-9]*")
GOLDS = (
    "answer",
    "finalanswer",
    "groundtruth",
    "gold",
    "goldanswer",
    "goldenanswer",
    "goldenanswers",
    "correctanswer",
    "referenceanswer",
    "expectedanswer",
    "answerkey",
    "answeridx",
    "answerindex",
    "correctoption",
    "correctchoice",
    "correct",
    "cop",
    "target",
    "label",
    "lsolutions",
    "answers",
    "aliases",
    "expectedoutput",
    "numericalanswer",
    "answernumber",
    "answervalue",
    "answerletter",
    "golden",
    "goldlabel",
    "groundtruthanswer",
    "gt",
    "reference",
    "expected",
    "a",
    *_GOLDS_ABROAD,
)
# Texts at the end of which the answer is.
WORKED = (
    "solution",
    "solutions",
    "goldstandardsolution",
    "referencesolution",
    "response",
    "completion",
    "output",
    "outputs",
    "generation",
)
# Dotted names that are preferred to other entries of objects.
NESTED_GOLDS = (
    "reward_model.ground_truth",
    "verification_info.ground_truth",
    "answer.aliases",
    "answers.text",
)
TESTS = (
    "testlist",
    "tests",
    "test",
    "testcases",
    "unittests",
    "inputoutput",
    "privatetests",
    "publictests",
    "privatetestcases",
    "publictestcases",
    "assertions",
)
PROGRAMS = ("code", "canonicalsolution", "referencesolution", "referencecode")
SETUPS = ("testsetupcode", "setupcode", "testsetup")
LEVELS = ("level", "difficulty", "difficultylevel")
ALIASES = ("aliases", "answers", "goldenanswers", "goldenanswer", "text")
IMAGES = re.compile(r"images?[0-9]*|picture|img|decodedimage|imagepaths?|imageurl")


def column_names(rows: Rows) -> list[str]:
    """Return the names of all columns, with dotted names for the entries of objects."""
    names: dict[str, None] = {}
    for row in rows:
        for name, value in row.items():
            names[name] = None
            _add_entries(names, name, value, _DEPTH)
    # Entries of objects come after whole columns, whatever row they were met in.
    tops = {name for row in rows for name in row}
    return sorted(names, key=lambda name: name not in tops)


def _add_entries(names: dict[str, None], prefix: str, value: Any, depth: int) -> None:
    value = decoded(value)
    if depth and isinstance(value, list) and value and isinstance(value[0], Mapping):
        value = value[0]  # the entries of a list of objects are lists
        depth = 1
    if not depth or not isinstance(value, Mapping):
        return
    for key, entry in value.items():
        names[f"{prefix}.{key}"] = None
        _add_entries(names, f"{prefix}.{key}", entry, depth - 1)


def plain_name(column: str) -> str:
    """Return a name as the lists above have it: `Final Answer` and `final_answer` are the same.

    Letters of other alphabets count where there are no others, so that `Answer (答案)` is `answer`.
    """
    name = column.lower()
    words = re.sub(r"[\W_]", "", name)
    latin = re.sub(r"[^a-z0-9]", "", name)
    is_foreign = not latin or bool(_ACCENTED.search(words))
    return words if is_foreign else latin


def named(columns: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the columns with one of some names, by the order of the names.

    Columns come before entries of objects, which are known by the last part of their name.
    """
    ranked = []
    for place, column in enumerate(columns):
        is_entry = "." in column
        name = plain_name(column.rpartition(".")[2] if is_entry else column)
        is_letter = is_entry and len(name) == 1  # a label in an object, not a short name
        if name in names and not is_letter:
            ranked.append((is_entry, names.index(name), place, column))
    return [column for *_, column in sorted(ranked)]
