"""The forms of published data sets: the question and the answer that a person would take of each.

Rows are made anew in the forms of the sets that tests are named after, with their columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.tasks import dataset_names
from advsweep.tasks.base import Problem, Split
from advsweep.tasks.dataset import Dataset
from advsweep.tasks.dataset_forms import FormError, recognise

Write = Callable[..., str]
Row = dict[str, Any]


def user(text: str) -> list[Row]:
    return [{"role": "user", "content": text}]


def said(*texts: str) -> list[Row]:
    """A conversation of ShareGPT."""
    speakers = ("human", "gpt")
    return [{"from": speakers[i % 2], "value": text} for i, text in enumerate(texts)]


OPTIONS = ["red", "green", "blue", "grey"]
SHOWN = "Which ({n})?\nA. red\nB. green\nC. blue\nD. grey"

# By the name of a set: its row number n, its first question, and its first answer.
FORMS: dict[str, tuple[Callable[[int], Row], str, Any]] = {
    "gsm8k": (
        lambda n: {
            "question": f"How many are {n} and {n}?",
            "answer": f"{n} and {n} are <<{n}+{n}={2 * n}>>{2 * n}.\n#### {2 * n},000",
        },
        "How many are 1 and 1?",
        "2,000",
    ),
    "math": (
        lambda n: {
            "problem": f"Find $x$ in $2x = {n}$.",
            "level": f"Level {1 + n % 5}",
            "type": "Algebra",
            "solution": f"Halve it: $x = \\boxed{{\\frac{{{n}}}{{2}}}}$.",
        },
        "Find $x$ in $2x = 1$.",
        "\\frac{1}{2}",
    ),
    "math-500": (
        lambda n: {
            "problem": f"Find ${n}$.",
            "solution": f"It is \\boxed{{{n}}}.",
            "answer": f"\\left( {n}, \\frac{{\\pi}}{{2}} \\right)",
            "subject": "Precalculus",
            "level": 2,
            "unique_id": f"test/{n}.json",
        },
        "Find $1$.",
        "\\left( 1, \\frac{\\pi}{2} \\right)",
    ),
    "aime of HuggingFaceH4": (
        lambda n: {
            "id": 59 + n,
            "problem": f"Every morning Ann walks {n} miles. Find it.",
            "solution": f"We see that $\\boxed{{{n:03d}}}$.",
            "answer": f"{n:03d}",
            "url": "https://x.org",
            "year": "2024",
        },
        "Every morning Ann walks 1 miles. Find it.",
        "001",
    ),
    "aime of Maxwell-Jia": (
        lambda n: {
            "ID": f"2024-II-{n}",
            "Problem": f"Among {n} residents, count.",
            "Solution": f"Let it be {n}. Then $w = {n}$.",
            "Answer": n,
        },
        "Among 1 residents, count.",
        "1",
    ),
    "amc": (
        lambda n: {"id": n, "problem": f"Cities are ${n}$ apart.", "answer": n + 0.0, "url": "u"},
        "Cities are $1$ apart.",
        "1",
    ),
    "olympiadbench": (
        lambda n: {
            "id": n,
            "subfield": "Algebra",
            "context": None if n % 3 else "Let $f$ be odd.",
            "question": f"Solve ${n}$.",
            "solution": ["A long proof. " * 30],
            "final_answer": [f"${n}$", f"$-{n}$"],
            "is_multiple_answer": True,
            "unit": None,
            "answer_type": "Numerical",
        },
        "Solve $1$.",
        "1, -1",
    ),
    "minerva": (
        lambda n: {
            "problem": f"A telescope of {n} m.",
            "solution": f"Start. \\[ s = \\boxed{{{n}.6e3}} \\]",
            "type": "Astronomy",
            "idx": n,
        },
        "A telescope of 1 m.",
        "1.6e3",
    ),
    "dapo-math-17k": (
        lambda n: {
            "data_source": "math_dapo",
            "prompt": user(f"Solve step by step. Answer: $Answer\n\nWhat is {n}?"),
            "ability": "MATH",
            "reward_model": {"ground_truth": f"{n}", "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": f"9a9b-{n}"},
        },
        "Solve step by step. Answer: $Answer\n\nWhat is 1?",
        "1",
    ),
    "dapo-math-17k-processed": (
        lambda n: {
            "prompt": f"In triangle {n}, find.",
            "solution": f"{n}",
            "data_source": "math_dapo",
            "source_prompt": user(f"Solve. In triangle {n}, find."),
            "ability": "MATH",
            "reward_model": {"ground_truth": f"{n}", "style": "rule"},
            "extra_info": {"index": "1"},
        },
        "In triangle 1, find.",
        "1",
    ),
    "verl gsm8k": (
        lambda n: {
            "data_source": "openai/gsm8k",
            "prompt": user(f'What is {n}? Let\'s think step by step and output after "####".'),
            "ability": "math",
            "reward_model": {"ground_truth": f"{n}", "style": "rule"},
            "extra_info": {
                "answer": f"It is so.\n#### {n}",
                "index": n,
                "question": f"What is {n}?",
                "split": "train",
            },
        },
        'What is 1? Let\'s think step by step and output after "####".',
        "1",
    ),
    "verl as json in texts": (
        lambda n: {
            "prompt": json.dumps(user(f"What is {n}?")),
            "reward_model": json.dumps({"ground_truth": n, "style": "rule"}),
        },
        "What is 1?",
        "1",
    ),
    "verl in a spreadsheet of pandas": (
        lambda n: {
            "prompt": str(user(f"What's {n}?")),
            "reward_model": str({"ground_truth": f"{n}", "style": None}),
        },
        "What's 1?",
        "1",
    ),
    "bigmath": (
        lambda n: {
            "problem": f"Expand ({n}).",
            "answer": f"{n}\\pi",
            "source": "orca_math",
            "domain": ["Algebra"],
            "llama8b_solve_rate": 0.5,
        },
        "Expand (1).",
        "1\\pi",
    ),
    "openr1-math": (
        lambda n: {
            "problem": f"Task {n}.",
            "solution": f"So \\boxed{{{n}}}.",
            "answer": f"{n}",
            "problem_type": "Algebra",
            "question_type": "math-word-problem",
            "source": "olympiads",
            "uuid": f"{n}",
            "is_reasoning_complete": [True, False],
            "generations": ["<think>" + "x" * 500, "<think>"],
            "correctness_count": 1,
            "messages": [*user(f"Task {n}."), {"role": "assistant", "content": "<think>"}],
        },
        "Task 1.",
        "1",
    ),
    "deepscaler": (
        lambda n: {
            "problem": f"Value {n}?",
            "answer": f"-\\frac{{{n}}}{{3}}",
            "solution": "1. So.",
        },
        "Value 1?",
        "-\\frac{1}{3}",
    ),
    "deepmath": (
        lambda n: {
            "question": f"Evaluate {n}.",
            "final_answer": f"{n}",
            "difficulty": 4.5,
            "topic": "Calculus",
            "r1_solution_1": "Okay, " * 99,
            "r1_solution_2": "Okay, " * 99,
            "r1_solution_3": "Okay, " * 99,
        },
        "Evaluate 1.",
        "1",
    ),
    "numinamath-1.5": (
        lambda n: {
            "problem": f"Given {n}, find.",
            "solution": "Long. " * 50 + f"\\boxed{{{n}}}",
            "answer": f"{n}",
            "problem_type": "Geometry",
            "question_type": "MCQ",
            "problem_is_valid": "Yes",
            "source": "cn_k12",
            "synthetic": False,
        },
        "Given 1, find.",
        "1",
    ),
    "numinamath-cot": (
        lambda n: {
            "source": "synthetic_math",
            "problem": f"Given {n}, find.",
            "solution": f"First, x.\nSo $\\boxed{{{n}}}$ it is.",
            "messages": [*user(f"Given {n}, find."), {"role": "assistant", "content": "x"}],
        },
        "Given 1, find.",
        "1",
    ),
    "metamathqa": (
        lambda n: {
            "type": "GSM_Rephrased",
            "query": f"Ann has {n}. How many?",
            "original_question": f"How many has Ann with {n}, who is a person of some patience?",
            "response": f"She has {n}.\n#### {n}\nThe answer is: {n}",
        },
        "Ann has 1. How many?",
        "1",
    ),
    "metamathqa of math": (
        lambda n: {
            "query": f"Ann has {n}. How many?",
            "response": f"She has some of them, and\nso on.\nThe answer is: $\\frac{{{n}}}{{7}}$.",
        },
        "Ann has 1. How many?",
        "$\\frac{1}{7}$",
    ),
    "svamp": (
        lambda n: {
            "ID": f"chal-{n}",
            "Body": f"Ann has {n} pens.",
            "Question": "How many has she?",
            "Equation": f"( {n}.0 )",
            "Answer": n + 0.0,
            "Type": "Subtraction",
        },
        "Ann has 1 pens.\nHow many has she?",
        "1",
    ),
    "asdiv": (
        lambda n: {
            "body": f"Ann has {n} pens.",
            "question": "How many has she?",
            "solution_type": "Addition",
            "answer": f"{n} (pens)",
            "formula": f"{n}={n}",
        },
        "Ann has 1 pens.\nHow many has she?",
        "1 (pens)",
    ),
    "mawps": (
        lambda n: {
            "iIndex": n,
            "sQuestion": f"Ann found {n} shells. How many?",
            "lEquations": [f"X={n}"],
            "lSolutions": [n + 0.0],
        },
        "Ann found 1 shells. How many?",
        "1",
    ),
    "math-qa": (
        lambda n: {
            "Problem": f"Which ({n})?",
            "Rationale": "because " * 40,
            "options": "a ) red , b ) green , c ) blue , d ) grey",
            "correct": "c",
            "category": "gain",
        },
        SHOWN.format(n=1),
        "C",
    ),
    "aqua-rat": (
        lambda n: {
            "question": f"Which ({n})?",
            "options": ["A)red", "B)green", "C)blue"],
            "rationale": "If Ann says so, then it is blue. " * 9,
            "correct": "C",
        },
        "Which (1)?\nA. A)red\nB. B)green\nC. C)blue",
        "C",
    ),
    "mmlu": (
        lambda n: {
            "question": f"Which ({n})?",
            "subject": "algebra",
            "choices": OPTIONS,
            "answer": (n + 1) % 4,
        },
        SHOWN.format(n=1),
        "C",
    ),
    "mmlu of numbers": (
        lambda n: {
            "question": f"How many ({n})?",
            "choices": ["0", "1", "2", "3"][::-1],
            "answer": n % 4,
        },
        "How many (1)?\nA. 3\nB. 2\nC. 1\nD. 0",
        "B",
    ),
    "mmlu as a spreadsheet": (
        lambda n: {
            "question": f"Which ({n})?",
            **dict(zip("ABCD", OPTIONS, strict=True)),
            "answer": "ABCD"[(n + 1) % 4],
        },
        SHOWN.format(n=1),
        "C",
    ),
    "mmlu-pro": (
        lambda n: {
            "question_id": n,
            "question": f"Which ({n})?",
            "options": OPTIONS,
            "answer": "ABCD"[(n + 1) % 4],
            "answer_index": (n + 1) % 4,
            "cot_content": "A: Let's think. " * 20,
            "category": "law",
        },
        SHOWN.format(n=1),
        "C",
    ),
    "kmmlu": (
        lambda n: {
            "question": f"Which ({n})?",
            "answer": 1 + (n + 1) % 4,
            **dict(zip("ABCD", OPTIONS, strict=True)),
            "Category": "Law",
            "Human Accuracy": 0.5,
        },
        SHOWN.format(n=1),
        "C",
    ),
    "c-eval": (
        lambda n: {
            "id": n,
            "question": f"哪个 ({n})?",
            **dict(zip("ABCD", "红绿蓝灰", strict=True)),
            "answer": "D",
            "explanation": "",
        },
        "哪个 (1)?\nA. 红\nB. 绿\nC. 蓝\nD. 灰",
        "D",
    ),
    "arc": (
        lambda n: {
            "id": f"M{n}",
            "question": f"Which ({n})?",
            "choices": {"text": OPTIONS, "label": list("ABCD")},
            "answerKey": "C",
        },
        SHOWN.format(n=1),
        "C",
    ),
    "arc with numbers": (
        lambda n: {
            "question": f"Which ({n})?",
            "choices": {"text": OPTIONS, "label": list("1234")},
            "answerKey": str(1 + (n + 1) % 4),
        },
        SHOWN.format(n=1),
        "C",
    ),
    "arc with letters in some rows": (
        lambda n: {
            "question": f"Which ({n})?",
            "choices": {"text": OPTIONS, "label": list("ABCD" if n % 5 else "1234")},
            "answerKey": "C" if n % 5 else "3",
        },
        SHOWN.format(n=1),
        "C",
    ),
    "arc as allen released it": (
        lambda n: {
            "id": f"M{n}",
            "question": {
                "stem": f"Which ({n})?",
                "choices": [
                    {"text": text, "label": label}
                    for text, label in zip(OPTIONS, "ABCD", strict=True)
                ],
            },
            "answerKey": "C",
        },
        SHOWN.format(n=1),
        "C",
    ),
    "commonsense-qa": (
        lambda n: {
            "id": f"{n}",
            "question": f"Which ({n})?",
            "question_concept": "colour",
            "choices": {"label": list("ABCD"), "text": OPTIONS},
            "answerKey": "C",
        },
        SHOWN.format(n=1),
        "C",
    ),
    "openbookqa": (
        lambda n: {
            "id": f"7-{n}",
            "question_stem": f"Which ({n})?",
            "choices": {"text": OPTIONS, "label": list("ABCD")},
            "answerKey": "C",
        },
        SHOWN.format(n=1),
        "C",
    ),
    "medqa": (
        lambda n: {
            "question": f"Which ({n})?",
            "answer": "blue",
            "options": dict(zip("ABCD", OPTIONS, strict=True)),
            "meta_info": "step1",
            "answer_idx": "C",
        },
        SHOWN.format(n=1),
        "C",
    ),
    "medmcqa": (
        lambda n: {
            "id": f"{n}",
            "question": f"Which ({n})?",
            **dict(zip(("opa", "opb", "opc", "opd"), OPTIONS, strict=True)),
            "cop": (n + 1) % 4,
            "choice_type": "single",
            "exp": None,
            "subject_name": "Eyes",
        },
        SHOWN.format(n=1),
        "C",
    ),
    "hellaswag": (
        lambda n: {
            "ind": n,
            "activity_label": "Painting",
            "ctx_a": "A man sits.",
            "ctx_b": "he",
            "ctx": f"Which ({n})?",
            "endings": OPTIONS,
            "source_id": f"x{n}",
            "split": "train",
            "label": str((n + 1) % 4),
        },
        SHOWN.format(n=1),
        "C",
    ),
    "piqa": (
        lambda n: {"goal": f"To paint {n}?", "sol1": "a brush", "sol2": "a nail", "label": n % 2},
        "To paint 1?\nA. a brush\nB. a nail",
        "B",
    ),
    "winogrande": (
        lambda n: {
            "sentence": f"Ann beat Bob since _ was fast ({n}).",
            "option1": "Ann",
            "option2": "Bob",
            "answer": str(1 + n % 2),
        },
        "Ann beat Bob since _ was fast (1).\nA. Ann\nB. Bob",
        "B",
    ),
    "social-i-qa": (
        lambda n: {
            "context": f"Ann left {n} times.",
            "question": "Why?",
            "answerA": "rain",
            "answerB": "sun",
            "answerC": "snow",
            "label": str(1 + n % 3),
        },
        "Ann left 1 times.\nWhy?\nA. rain\nB. sun\nC. snow",
        "B",
    ),
    "boolq": (
        lambda n: {"question": f"is {n} odd", "answer": n % 2 == 1, "passage": "Some are odd."},
        "Some are odd.\nis 1 odd",
        ["yes", "true"],
    ),
    "triviaqa": (
        lambda n: {
            "question": f"Who wrote it in {1900 + n}?",
            "question_id": f"tc_{n}",
            "question_source": "http://x.org",
            "entity_pages": {"title": [], "wiki_context": []},
            "search_results": {"description": ["Some text. " * 50], "rank": [0]},
            "answer": {
                "aliases": ["Sinclair Lewis", "Harry Lewis"],
                "normalized_aliases": ["sinclair lewis", "harry lewis"],
                "value": "Sinclair Lewis",
                "type": "WikipediaEntity",
            },
        },
        "Who wrote it in 1901?",
        ["Sinclair Lewis", "Harry Lewis"],
    ),
    "popqa": (
        lambda n: {
            "question": f"Who is {n}?",
            "possible_answers": '["Ann", "Anna"]',
            "answers": ["Ann", "Anna"],
        },
        "Who is 1?",
        ["Ann", "Anna"],
    ),
    "search-r1": (
        lambda n: {
            "id": f"train_{n}",
            "question": f"Who is {n}?",
            "golden_answers": ["Ann Lee", "A. Lee"],
            "data_source": "nq",
            "prompt": user(f"Answer the given question with <search>. Question: Who is {n}?"),
            "reward_model": {"ground_truth": {"target": ["Ann Lee", "A. Lee"]}, "style": "rule"},
        },
        "Who is 1?",
        ["Ann Lee", "A. Lee"],
    ),
    "squad": (
        lambda n: {
            "id": f"{n}",
            "title": "Ann",
            "context": f"Ann is in Rome, at number {n}.",
            "question": "Where is Ann?",
            "answers": {"text": ["Rome", "in Rome"], "answer_start": [10, 7]},
        },
        "Ann is in Rome, at number 1.\nWhere is Ann?",
        ["Rome", "in Rome"],
    ),
    "open-instruct rlvr": (
        lambda n: {
            "messages": user(f"Question: What is {n}?\nAnswer: Let's think step by step."),
            "ground_truth": f"{n}",
            "dataset": "gsm8k",
        },
        "Question: What is 1?\nAnswer: Let's think step by step.",
        "1",
    ),
    "open-instruct of lists": (
        lambda n: {
            "messages": user(f"What is {n}?"),
            "ground_truth": [f"{n}"],
            "dataset": ["gsm8k"],
        },
        "What is 1?",
        "1",
    ),
    "synthetic-1": (
        lambda n: {
            "source": "numina",
            "task_type": "verifiable_math",
            "in_source_id": None,
            "prompt": f"Solve {n}. Box it.",
            "gold_standard_solution": "Long. " * 60,
            "verification_info": json.dumps({"ground_truth": f"{n}"}),
            "metadata": "{}",
            "problem_id": f"vfm_{n}",
        },
        "Solve 1. Box it.",
        "1",
    ),
    "prime eurus math": (
        lambda n: {
            "data_source": "numina_olympiads",
            "prompt": [{"role": "system", "content": "Assess."}, *user(f"Find {n}.")],
            "ability": "math",
            "reward_model": {"ground_truth": f"{n}", "style": "rule"},
            "extra_info": {"index": n, "split": "dummy"},
        },
        "Find 1.",
        "1",
    ),
    "skywork-or1": (
        lambda n: {
            "data_source": "train-math-deepscaler",
            "prompt": user(f"The {n} points."),
            "ability": "math",
            "reward_model": {"ground_truth": f'["{n}"]', "style": "rule"},
            "extra_info": {"index": n, "model_difficulty": {"DeepSeek": 8}},
        },
        "The 1 points.",
        "1",
    ),
    "reasoning-gym": (
        lambda n: {
            "question": f"Sort {n}.",
            "answer": f"{n}",
            "metadata": json.dumps({"source_dataset": "x", "difficulty": {"n": [1, 2]}}),
        },
        "Sort 1.",
        "1",
    ),
    "trl": (
        lambda n: {"prompt": user(f"What is {n}?"), "solution": f"${n}$"},
        "What is 1?",
        "$1$",
    ),
    "trl prompt and completion": (
        lambda n: {
            "prompt": user(f"What is {n}?"),
            "completion": [{"role": "assistant", "content": f"{n}"}],
        },
        "What is 1?",
        "1",
    ),
    "unsloth": (
        lambda n: {
            "prompt": [{"role": "system", "content": "Think."}, *user(f"What is {n}?")],
            "answer": f"{n}",
        },
        "What is 1?",
        "1",
    ),
    "messages that end with the answer": (
        lambda n: {
            "messages": [*user(f"What is {n}?"), {"role": "assistant", "content": f"#### {n}"}]
        },
        "What is 1?",
        "1",
    ),
    "sharegpt": (
        lambda n: {"conversations": said(f"What is {n}?", f"So \\boxed{{{n}}}.")},
        "What is 1?",
        "1",
    ),
    "openrlhf": (
        lambda n: {"input": f"What is {n}?", "label": f"{n}", "datasource": "gsm8k"},
        "What is 1?",
        "1",
    ),
    "apps as a text": (
        lambda n: {"input": f"What is {n}?", "output": f"{n}"},
        "What is 1?",
        "1",
    ),
    "alpaca": (
        lambda n: {"instruction": "Add one.", "input": f"{n}", "output": f"{n + 1}"},
        "Add one.\n1",
        "2",
    ),
    "alpaca without input": (
        lambda n: {"instruction": f"Add one to {n}.", "input": "", "output": f"{n + 1}"},
        "Add one to 1.",
        "2",
    ),
    "knights and knaves": (
        lambda n: {"quiz": f"Ann says {n}.", "names": ["Ann"], "answer": "A knave", "index": n},
        "Ann says 1.",
        "A knave",
    ),
    "contexts in a list": (
        lambda n: {"question": f"Is {n}?", "context": ["One.", "Two."], "answer": "yes"},
        "One.\nTwo.\nIs 1?",
        "yes",
    ),
    "tags of R1": (
        lambda n: {
            "question": f"What is {n}?",
            "solution": f"<think>One\nadds <answer>9</answer>.</think>\n<answer>{n}</answer>\n",
        },
        "What is 1?",
        "1",
    ),
    "a worked answer and a final one": (
        lambda n: {
            "question": f"What is {n}?",
            "answer": "One adds. " * 40,
            "final_answer": f"{n}",
        },
        "What is 1?",
        "1",
    ),
    "scienceqa without images": (
        lambda n: {
            "image": None,
            "question": f"Which ({n})?",
            "choices": OPTIONS,
            "answer": (n + 1) % 4,
            "hint": "",
            "lecture": "Colours. " * 20,
        },
        SHOWN.format(n=1),
        "C",
    ),
    "nested": (
        lambda n: {"data": {"question": f"What is {n}?", "answer": f"{n}"}, "id": n},
        "What is 1?",
        "1",
    ),
}


def problems_of(write: Write, rows: list[Row]) -> list[Problem]:
    task = Dataset(
        data=write("rows.jsonl", rows), train_split="", prompt="{question}", verifier="regex"
    )
    return list(task.problems(Split.HELD_OUT))


@pytest.mark.parametrize(("row", "question", "answer"), FORMS.values(), ids=FORMS)
def test_a_form_gives_what_a_person_would_take(
    write: Write, row: Callable[[int], Row], question: str, answer: Any
) -> None:
    rows = [row(n) for n in range(1, 21)]
    assert recognise(rows).doubts == ()
    first = problems_of(write, rows)[0]
    assert first.prompt == question
    several = isinstance(answer, list)
    assert first.reference["answers" if several else "answer"] == answer


ECHO = {"input": "1\n", "output": "1\n"}
CHECK = "def check(candidate):\n    assert candidate(2) == 4\n"

# Of sets of programs: the row number n, the first question, and the first problem's tests.
PROGRAMS: dict[str, tuple[Callable[[int], Row], str, list[Any]]] = {
    "mbpp": (
        lambda n: {
            "task_id": n,
            "text": f"Write a function to add {n}.",
            "code": "def f(x):\r\n  return x",
            "test_list": [f"assert f(0) == {n}", "assert f(1)"],
            "test_setup_code": "",
            "challenge_test_list": [],
        },
        "Write a function to add 1.",
        ["assert f(0) == 1", "assert f(1)"],
    ),
    "mbpp sanitized": (
        lambda n: {
            "source_file": "x.ipynb",
            "task_id": n,
            "prompt": f"Write a function to add {n}.",
            "code": "def f(x): return x",
            "test_imports": [],
            "test_list": [f"assert f(0) == {n}"],
        },
        "Write a function to add 1.",
        ["assert f(0) == 1"],
    ),
    "humaneval": (
        lambda n: {
            "task_id": f"HumanEval/{n}",
            "prompt": f'def f(x):\n    """Return {n} times x."""\n',
            "canonical_solution": "    return 2 * x\n",
            "test": CHECK,
            "entry_point": "f",
        },
        'def f(x):\n    """Return 1 times x."""',
        [f"{CHECK}\ncheck(f)"],
    ),
    "apps": (
        lambda n: {
            "problem_id": n,
            "question": f"Print {n}.",
            "solutions": '["print(input())"]',
            "input_output": json.dumps({"inputs": ["1\n"], "outputs": ["1\n"]}),
            "difficulty": "interview",
            "url": "https://x.org",
            "starter_code": "",
        },
        "Print 1.",
        [ECHO],
    ),
    "code-contests": (
        lambda n: {
            "name": f"{n}_A",
            "description": f"Print {n}.",
            "public_tests": {"input": ["1\n"], "output": ["1\n"]},
            "private_tests": {"input": [], "output": []},
            "difficulty": 7,
        },
        "Print 1.",
        [ECHO],
    ),
    "livecodebench": (
        lambda n: {
            "question_title": f"A{n}",
            "question_content": f"Print {n}.",
            "platform": "atcoder",
            "starter_code": "",
            "difficulty": "easy",
            "public_test_cases": json.dumps([{**ECHO, "testtype": "stdin"}]),
            "private_test_cases": "eJxrYJmayAABEbEQVlFiUl5qKQAo",
            "metadata": "{}",
        },
        "Print 1.",
        [ECHO],
    ),
    "deepcoder": (
        lambda n: {
            "problem": f"Print {n}.",
            "solutions": ["print(input())"],
            "tests": json.dumps([{"type": "stdin_stdout", **ECHO}]),
        },
        "Print 1.",
        [ECHO],
    ),
    "prime eurus code": (
        lambda n: {
            "data_source": "taco",
            "prompt": [{"role": "system", "content": "Assess."}, *user(f"Print {n}.")],
            "ability": "code",
            "reward_model": {
                "ground_truth": json.dumps({"inputs": ["1\n"], "outputs": ["1\n"]}),
                "style": "rule",
            },
        },
        "Print 1.",
        [ECHO],
    ),
    "open-instruct code": (
        lambda n: {
            "messages": user(f"Write f for {n}."),
            "ground_truth": [f"assert f(0) == {n}"],
            "dataset": "code",
        },
        "Write f for 1.",
        ["assert f(0) == 1"],
    ),
    "acecoder": (
        lambda n: {"id": n, "question": f"Write f ({n}).", "test_cases": [f"assert f() == {n}"]},
        "Write f (1).",
        ["assert f() == 1"],
    ),
}


@pytest.mark.parametrize(("row", "question", "tests"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_form_of_programs_gives_its_tests(
    write: Write, row: Callable[[int], Row], question: str, tests: list[Any]
) -> None:
    rows = [row(n) for n in range(1, 21)]
    assert recognise(rows).doubts == ()
    task = Dataset(
        data=write("rows.jsonl", rows), train_split="", prompt="{question}", verifier="code"
    )
    first = task.problems(Split.HELD_OUT)[0]
    assert first.prompt == question
    assert first.reference["tests"] == tests


def test_a_body_of_humaneval_is_a_solution_with_its_question(write: Write) -> None:
    row = PROGRAMS["humaneval"][0]
    data = write("rows.jsonl", [row(1), row(2)])
    task = Dataset(data=data, train_split="", verifier="code", prompt="code")
    program = task.problems(Split.HELD_OUT)[0].reference["program"]
    assert program == 'def f(x):\n    """Return 1 times x."""\n    return 2 * x\n'


@pytest.mark.parametrize(
    ("row", "options", "answer"),
    [
        (
            {
                "Question": "Which?",
                "Correct Answer": "blue",
                "Incorrect Answer 1": "red",
                "Incorrect Answer 2": "green",
                "Incorrect Answer 3": "grey",
                "Explanation": "It is. " * 50,
            },
            {"blue", "red", "green", "grey"},
            "blue",
        ),
        (
            {
                "question": "Which?",
                "distractor3": "grey",
                "distractor1": "red",
                "distractor2": "green",
                "correct_answer": "blue",
                "support": "It is. " * 50,
            },
            {"blue", "red", "green", "grey"},
            "blue",
        ),
    ],
    ids=["gpqa", "sciq"],
)
def test_a_right_option_beside_wrong_ones_has_a_drawn_place(
    write: Write, row: Row, options: set[str], answer: str
) -> None:
    key = "Question" if "Question" in row else "question"
    rows = [{**row, key: f"Which ({n})?"} for n in range(40)]
    problems = problems_of(write, rows)
    letters = []
    for problem in problems:
        shown = dict(line.split(". ") for line in problem.prompt.splitlines()[1:])
        assert set(shown.values()) == options
        assert shown[problem.reference["answer"]] == answer
        letters.append(problem.reference["answer"])
    # Of 40 fair draws among four, a letter is missing once in 25,000 times; these are fixed.
    assert set(letters) == set("ABCD")
    assert problems_of(write, rows)[0] == problems[0]


REFUSED: dict[str, tuple[Row, str]] = {
    "instructions with constraints": (
        {
            "messages": user("Write 9 words."),
            "ground_truth": json.dumps({"func_name": "words", "N": 9}),
            "dataset": "ifeval",
        },
        "a column of answers",
    ),
    "countdown of TinyZero for verl": (
        {
            "prompt": user("Make 98 of 44, 19, 35."),
            "reward_model": {"style": "rule", "ground_truth": {"target": 98, "numbers": [44, 19]}},
        },
        "a column of answers",
    ),
    "countdown with a question": (
        {"question": "Make 98 of 44, 19, 35.", "target": 98, "nums": [44, 19, 35]},
        "a column of answers",
    ),
    "countdown of TinyZero": ({"target": 98, "nums": [44, 19, 35]}, "a column of questions"),
    "preferences": (
        {"chosen": [*said("a", "b")], "rejected": [*said("a", "c")], "score": 0.5},
        "a column of questions",
    ),
    "several turns": (
        {"conversations": said("Hi", "Hello", "What is 1?", "1")},
        "a column of questions",
    ),
    "geometry": (
        {"images": [{"bytes": "x", "path": None}], "problem": "<image>Find x.", "answer": "3"},
        "images in 'images'",
    ),
    "prose": ({"question": "What?", "text": "It is so. " * 50}, "a column of answers"),
    "no answers": ({"instruction": "Sing.", "id": 4}, "a column of answers"),
    "all answers are gaps": ({"question": "What?", "answer": None}, "a column of answers"),
}


@pytest.mark.parametrize(("row", "message"), REFUSED.values(), ids=REFUSED)
def test_a_form_that_is_not_known_is_refused_with_its_rows(
    write: Write, row: Row, message: str
) -> None:
    rows = [dict(row) for _ in range(4)]
    with pytest.raises(FormError, match=message) as raised:
        problems_of(write, rows)
    if "images" not in message:
        assert [line for line in raised.value.details if line.startswith("row")] == [
            "row 1:",
            "row 2:",
        ]
        assert len(raised.value.details) == 2 + 2 * len(row)


DOUBTFUL: dict[str, tuple[Callable[[int], Row], str]] = {
    "orca-math": (
        lambda n: {"question": f"What is {n}?", "answer": "One adds them all up. " * 20},
        "no column of answers can be read",
    ),
    "drop": (
        lambda n: {
            "passage": "In 1999 it rained.",
            "question": f"When ({n})?",
            "answers_spans": {"spans": ["1999", "in 1999"], "types": ["date", "span"]},
        },
        "",
    ),
    "two answers": (
        lambda n: {"question": f"{n}?", "answer": f"{n}", "ground_truth": f"{n + 1}"},
        "both 'answer' and 'ground_truth' may be the answers, and differ",
    ),
    "hotpotqa": (
        lambda n: {
            "question": f"Who is {n}?",
            "answer": "Ann",
            "context": {"title": ["Ann"], "sentences": [["She is."]]},
        },
        "'context' seems to have texts before the questions that cannot be read",
    ),
    "options as numpy writes them": (
        lambda n: {"question": f"Which ({n})?", "choices": "['red' 'green']", "answer": n % 2},
        "'choices' seems to have options that cannot be read",
    ),
    "labels beside answers": (
        lambda n: {"question": f"{n}?", "answer": f"{n}", "label": n % 2},
        "both 'answer' and 'label' may be",
    ),
}


@pytest.mark.parametrize(("row", "message"), DOUBTFUL.values(), ids=DOUBTFUL)
def test_a_doubt_is_named(write: Write, row: Callable[[int], Row], message: str) -> None:
    rows = [row(n) for n in range(1, 21)]
    if not message:
        with pytest.raises(FormError, match="a column of answers"):
            recognise(rows)
        return
    (doubt,) = recognise(rows).doubts
    assert message in doubt
    with pytest.warns(AdvsweepWarning, match=message):
        problems_of(write, rows)


def test_an_odd_message_is_named_with_its_row(write: Write) -> None:
    rows: list[Row] = [{"prompt": user(f"What is {n}?"), "answer": n} for n in range(4)]
    odd = [*user("What is 5?"), {"role": "tool", "content": "5"}]
    with pytest.raises(ConfigError, match=r"question_column: expected messages of .* of row 5"):
        problems_of(write, [*rows, {"prompt": odd, "answer": 5}])
    parts = [{"type": "image"}, {"type": "text", "text": "What?"}]
    with pytest.raises(ConfigError, match="not of 'image', in 'prompt' of row 5"):
        problems_of(write, [*rows, {"prompt": [{"role": "user", "content": parts}], "answer": 5}])


def test_system_messages_of_the_data_reach_the_model(write: Write) -> None:
    rows = [
        {"prompt": [{"role": "system", "content": f"Be {n % 2}."}, *user(f"{n}?")], "answer": n}
        for n in range(4)
    ]
    data = write("rows.jsonl", rows)
    task = Dataset(data=data, train_split="", prompt="boxed_system", verifier="numeric")
    first = task.problems(Split.HELD_OUT)[0]
    assert first.system.endswith("\\boxed{}.\n\nBe 0.")
    assert task.has_system_messages
    plain = Dataset(data=data, train_split="", prompt="plain", verifier="numeric")
    assert plain.has_system_messages
    assert plain.protocol()["system"] not in ("none", task.protocol()["system"])


def test_the_page_has_the_names_of_columns() -> None:
    page = (Path(__file__).parents[3] / "docs" / "datasets.md").read_text()
    roles = {
        "question": dataset_names.QUESTIONS,
        "text before it": dataset_names.CONTEXTS,
        "options": dataset_names.OPTIONS,
        "answer": dataset_names.GOLDS,
        "worked solution": dataset_names.WORKED,
        "level": dataset_names.LEVELS,
    }
    for role, names in roles.items():
        assert f"| {role} | {', '.join(f'`{name}`' for name in names)} |" in page


def test_answers_that_stand_for_none_are_gaps(write: Write) -> None:
    rows = [{"problem": f"{n}?", "answer": f"{n}"} for n in range(6)]
    rows += [{"problem": "So?", "answer": "proof"}, {"problem": "How?", "answer": "notfound"}]
    with pytest.warns(AdvsweepWarning, match="rows 7, 8 have no answer"):
        assert len(problems_of(write, rows)) == 6


def test_tests_of_functions_are_left_out_and_named(write: Write) -> None:
    script = {"inputs": ["1\n"], "outputs": ["1\n"]}
    calls = {"fn_name": "f", "inputs": [[1]], "outputs": [[1]]}
    rows = [
        {"question": f"{n}?", "input_output": json.dumps(calls if n == 3 else script)}
        for n in range(6)
    ]
    task = Dataset(data=write("rows.jsonl", rows), train_split="", verifier="code", prompt="code")
    message = "row 4 has no tests of a script, only calls of a function"
    with pytest.warns(AdvsweepWarning, match=message):
        assert len(task.problems(Split.HELD_OUT)) == 5


def test_a_gap_between_options_is_refused(write: Write) -> None:
    rows = [
        {"question": f"{n}?", "A": "red", "B": "green", "C": "blue", "D": "", "answer": n % 3}
        for n in range(6)
    ]
    assert problems_of(write, rows)[2].prompt == "2?\nA. red\nB. green\nC. blue"
    rows[4]["B"] = None
    with pytest.raises(ConfigError, match=r"expected options without a gap between them .* row 5"):
        problems_of(write, rows)


def test_a_place_of_an_image_is_named(write: Write) -> None:
    texts = ["Find x.", "<image>Find y.", "See ![](https://x.org/a.png) for z.", "Find w!"]
    rows = [{"question": text, "answer": "3"} for text in texts]
    message = "2 held-out problems with an image, which the model does not see: rows 2, 3"
    with pytest.warns(AdvsweepWarning, match=message):
        assert len(problems_of(write, rows)) == 4


def test_marks_of_answers_are_no_answers() -> None:
    rows = [{"question": f"{n}?", "answer": f"{n}", "correct": True} for n in range(9)]
    form = recognise(rows)
    assert (form.gold, form.doubts) == ("answer", ())


def test_texts_before_a_choice_called_answers_are_options() -> None:
    rows = [
        {"context": "All are.", "question": f"{n}?", "answers": ["a", "b", "c"], "label": n % 3}
        for n in range(9)
    ]
    form = recognise(rows)
    assert (form.gold, form.options, form.first_option) == ("label", ("answers",), 0)


def test_spellings_beside_an_answer_are_no_options() -> None:
    rows = [{"question": f"{n}?", "answer": "2", "answers": ["2", "2.0"]} for n in range(9)]
    form = recognise(rows)
    assert (form.gold, form.options) == ("answer", ())
    labelled = [{"question": f"{n}?", "label": "x", "answers": ["x", "y"]} for n in range(9)]
    assert recognise(labelled).options == ()


@pytest.mark.parametrize("gold", [["B"], "['B']", [1], ["green"]])
def test_a_list_of_one_names_an_option(write: Write, gold: object) -> None:
    rows = [
        {"question": f"{n}?", "options": ["red", "green", "blue"], "answer": gold} for n in range(6)
    ]
    rows[0]["answer"] = [0] if gold == [1] else ["A"]
    first, second = problems_of(write, rows)[:2]
    assert (first.reference["answer"], second.reference["answer"]) == ("A", "B")


def test_options_may_be_lines_with_letters(write: Write) -> None:
    rows = [
        {"question": f"{n}?", "options": "A. U.S.A.\nB. v. 2\nC. a) or b)", "answer": "b"}
        for n in range(6)
    ]
    problem = problems_of(write, rows)[0]
    assert problem.prompt == "0?\nA. U.S.A.\nB. v. 2\nC. a) or b)"
    assert problem.reference["answer"] == "B"  # as the options are shown


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("题目", "答案"),
        ("問題", "答え"),
        ("Pregunta", "Respuesta"),
        ("Énoncé", "Réponse"),
        ("Question (问题)", "Answer / 答案"),
    ],
)
def test_names_in_other_languages(question: str, answer: str) -> None:
    form = recognise([{"来源": "x", question: f"{n}?", answer: n} for n in range(6)])
    assert (form.question, form.gold) == (question, answer)


def test_a_puzzle_stands_before_its_questions() -> None:
    rows = [{"puzzle": f"{n} houses.", "question": "Who?", "answer": "Bob"} for n in range(6)]
    assert recognise(rows).context == "puzzle"
    alone = [{"puzzle": f"{n} houses. Who?", "answer": "Bob"} for n in range(6)]
    assert (recognise(alone).question, recognise(alone).context) == ("puzzle", "")


def test_a_refusal_says_why_messages_are_no_question() -> None:
    turns = [*user("1 + 1?"), {"role": "assistant", "content": "2"}, *user("2 + 2?")]
    with pytest.raises(FormError, match=r"'messages' has .* in row 1 .* not a conversation of sev"):
        recognise([{"messages": turns, "answer": "4"}] * 4)


def test_a_refusal_of_an_image_shows_its_row() -> None:
    rows: list[dict[str, object]] = [{"question": f"{n}?", "answer": n} for n in range(6)]
    rows[4]["image"] = "plot.png"
    with pytest.raises(FormError) as raised:
        recognise(rows)
    assert [line for line in raised.value.details if line.startswith("row")] == ["row 1:", "row 5:"]
    assert any("plot.png" in line for line in raised.value.details)
