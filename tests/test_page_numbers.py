"""The numbers of README.md, docs/studies.md and the studies' answers follow from their tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import page_numbers
import page_queries
import pytest

ROOT = Path(__file__).resolve().parents[1]
LEADERBOARD = "leaderboard/hard.csv"


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


@pytest.mark.parametrize("name", page_numbers.documents())
def test_every_number_of_a_document_is_what_its_query_says(name: str) -> None:
    problems = page_numbers.check(read(name), name)
    assert problems == [], "run `make numbers`, and mend the sentences that it names"


@pytest.mark.parametrize("name", page_numbers.documents())
def test_writing_the_numbers_again_changes_nothing(name: str) -> None:
    assert page_numbers.rewrite(read(name)) == read(name)


def test_every_exemption_is_still_there_and_has_a_reason() -> None:
    for name, phrases in page_numbers.exempt_phrases().items():
        for phrase, reason in phrases.items():
            assert phrase in read(name), phrase
            assert len(reason.split()) >= 3, phrase
            assert page_numbers.tokens(phrase), f"{phrase!r} has no number"


def changed(token: page_numbers.Token) -> str:
    """A number with another last digit, the next number word, or a verdict turned round."""
    if token.match["word"]:
        place = page_numbers.WORDS.index(token.text.lower())
        return page_numbers.WORDS[place - 1]
    digits = token.match["digits"]
    last = (int(digits[-1]) + 1) % 10
    start = token.match.start("digits") - token.start + len(digits) - 1
    return token.text[:start] + str(last) + token.text[start + 1 :]


def turned_round(text: str, token: page_numbers.Token) -> str:
    """A text in which a verdict says the contrary."""
    if not token.negated:
        return f"{text[: token.start]}not {text[token.start :]}"
    before = text[: token.start]
    clause = page_numbers._CLAUSE_END.split(before)[-1]
    start = len(before) - len(clause)
    return before[:start] + page_numbers._NEGATION.sub("do", clause) + text[token.start :]


def mutations(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield each number and verdict that needs a source, and the text with it changed alone."""
    required = page_numbers.regions(text, name)
    for token in page_numbers.tokens(text):
        if not page_numbers._lies_in(token, required):
            continue
        if token.is_verdict:
            yield token.text, turned_round(text, token)
        else:
            yield token.text, text[: token.start] + changed(token) + text[token.end :]


def name_mutations(text: str, name: str) -> Iterator[str]:
    """Yield a text for each name with a number, with its last digit changed."""
    visible = page_numbers._OPAQUE.sub(page_numbers._hide, text)
    for start, end in page_numbers.regions(text, name):
        for match in page_numbers._NAME.finditer(visible, start, end):
            if page_numbers._CLAIM_ID.fullmatch(match[0]):
                continue  # The next id may be a claim, too.
            (*_, digit) = re.finditer(r"\d", match[0])
            place = match.start() + digit.start()
            yield text[:place] + str((int(digit[0]) + 1) % 10) + text[place + 1 :]


def block_mutations(text: str) -> Iterator[str]:
    """Yield a text for each number of a block, with its last digit changed."""
    for block in page_numbers._BLOCK.finditer(text):
        for digit in re.finditer(r"\d(?!\d)", block["body"]):
            place = block.start("body") + digit.start()
            yield text[:place] + str((int(digit[0]) + 1) % 10) + text[place + 1 :]


def first_screen() -> str:
    """README.md up to the table of the reader's stack."""
    return read("README.md").partition("## Your stack")[0]


@pytest.mark.parametrize("name", page_numbers.documents())
def test_no_number_or_verdict_can_be_changed_unseen(name: str) -> None:
    text = read(name)
    mutated = list(mutations(text, name))
    assert mutated or name in page_numbers.BOUND or name == "experiments/papers/README.md"
    unseen = [number for number, other in mutated if not page_numbers.check_numbers(other, name)]
    assert unseen == []
    assert all(page_numbers.check_blocks(other, name) for other in block_mutations(text))
    assert all(page_numbers.check_names(other, name) for other in name_mutations(text, name))


def test_the_first_screen_of_the_readme_is_walked_over() -> None:
    text = first_screen()
    numbers = [number for number, _ in mutations(text, "README.md")]
    (estimators,) = page_queries.evaluate("estimators")
    assert {
        f"{estimators}",
        "3.11",
        "150",
        "eight",
        "fifteen",
        ".02",
        ".039",
        "significantly",
    } <= set(numbers)
    assert len(list(block_mutations(text))) > 50


# The forms of numbers


def write(text: str) -> str:
    return page_numbers.rewrite(text)


@pytest.mark.parametrize(
    ("written", "value", "expected"),
    [
        (".1", "0.084", ".1"),
        (".111", "0.0844", ".084"),
        ("+0.11", "0.084", "+0.08"),
        ("+.111", "-0.0844", "-.084"),
        ("±.111", "0.0208", "±.021"),
        ("1e-4", "0.0002", "2e-4"),
        ("1,111", "103000", "103,000"),
        ("99 %", "0.112", "11 %"),
        ("9 to 9 %", "0.12; constant 0.227", "12 to 23 %"),
        ("two", "8", "eight"),
        ("Two", "8", "Eight"),
        ("9.9", "-4.04", "-4.0"),
    ],
)
def test_a_number_is_written_in_the_form_that_stands_there(
    written: str, value: str, expected: str
) -> None:
    comment = f"<!-- = constant {value} -->"
    assert write(f"It is {written}{comment}.") == f"It is {expected}{comment}."


def test_the_last_values_belong_to_the_last_numbers_before_a_comment() -> None:
    text = "Of 7 some have 1 and 2<!-- = constant 3; constant 4 --> of 9."
    assert write(text) == text.replace("1 and 2", "3 and 4")
    bound = [binding.token.text for binding in page_numbers.bindings(text) if binding.query]
    assert bound == ["1", "2"]


def test_names_links_code_and_comments_hold_no_numbers() -> None:
    text = "pass@1 of Qwen2, `k=3`, [it](a/4.md#5) <!-- not run: 6 -->, SmolLM2-135M, 9B"
    assert page_numbers.tokens(text) == []
    assert page_numbers.tokens("2. **Start.**") == []
    fence = "```sh\nrun seed=0,1   # two runs, 30 steps\n```\n"
    assert [token.text for token in page_numbers.tokens(fence)] == ["two", "30"]


@pytest.mark.parametrize(
    ("sentence", "value"),
    [
        ("They differ significantly", "significant"),
        ("They do not differ significantly", "not significant"),
        ("None of them is significant", "not significant"),
        ("no significant difference", "not significant"),
        ("It is not there, and significant here", "significant"),
        ("They are equivalent", "equivalent"),
        ("They are not equivalent", "not equivalent"),
    ],
)
def test_a_verdict_has_the_negation_of_its_clause(sentence: str, value: str) -> None:
    (token,) = page_numbers.tokens(sentence)
    assert token.value == value


def test_a_verdict_that_the_data_do_not_have_is_named() -> None:
    name = "experiments/leaderboard/README.md"
    comment = f"<!-- = verdict {LEADERBOARD} pass@1 psr -->"
    assert page_numbers.check(f"**Answer.** PSR differs significantly{comment}", name) == []
    (problem,) = page_numbers.check(f"**Answer.** PSR does not differ significantly{comment}", name)
    assert "'not significant' is 'significant'" in problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("It is 3.", "'3' has no query"),
        ("It is significant.", "'significant' has no query"),
        ("It is 1<!-- = value leaderboard/none.csv psr pass@1 -->", "there is no leaderboard/none"),
        (f"It is 1<!-- = value {LEADERBOARD} pssr pass@1 -->", "has no row pssr"),
        (f"It is 1<!-- = value {LEADERBOARD} psr pass@3 -->", "has no column pass@3"),
        (f"It is 1<!-- = value {LEADERBOARD} grpo pass@1 -->", "has 2 values in these rows"),
        (f"It is 1<!-- = interval {LEADERBOARD} psr pass@1 -->", "3 values for 1 numbers"),
        ("It is 1<!-- = median x -->", "there is no query median"),
        (f"Higher<!-- = above {LEADERBOARD} pass@1 maxrl -->", "not significantly above"),
        (f"Lower<!-- = below {LEADERBOARD} pass@1 psr -->", "not significantly below"),
        (f"alike<!-- = verdict {LEADERBOARD} pass@1 psr maxrl -->", "some of psr, maxrl"),
    ],
)
def test_what_has_no_source_is_named(text: str, message: str) -> None:
    problems = page_numbers.check(f"**Answer.** {text}", "experiments/leaderboard/README.md")
    assert len(problems) == 1
    assert message in problems[0]


def test_only_answers_of_a_study_s_page_need_sources() -> None:
    text = "# A 1\n\n**Question.** 2?\n\n**Answer.** A\n\n- b\n\n**Table.** 3\n\n"
    text += "## Verdict\n\nC\n\n## D\n4"
    spans = page_numbers.regions(text, "experiments/a/README.md")
    parts = [text[start:end] for start, end in spans]
    assert parts == ["**Answer.** A\n\n- b\n\n", "## Verdict\n\nC\n\n"]


def test_equivalence_is_that_of_two_one_sided_tests() -> None:
    """The 90 % interval of a difference with 91 degrees of freedom is 1.6618/1.9864 of the 95 %."""
    middle, low, high = page_queries.difference("leaderboard/middle.csv", "maxrl", "pass@1")
    df = page_queries.value("leaderboard/middle.csv", "maxrl", "pass@1_df")
    assert df == [91]
    margin = abs(middle) + (high - low) / 2 * 1.66177 / 1.98638
    found = page_queries.equivalence_margin("leaderboard/middle.csv", "pass@1", "maxrl")
    assert found == pytest.approx(margin, abs=1e-6)
    file = "leaderboard/middle.csv"
    assert page_queries.equivalent(file, "pass@1", str(margin + 1e-4), "maxrl") == ["equivalent"]
    assert page_queries.equivalent(file, "pass@1", str(margin - 1e-4), "maxrl") != ["equivalent"]
    # Rounded up, so that the page does not say more than the test.
    [shown] = page_queries.equal_within(file, "pass@1", "maxrl")
    assert margin <= shown < margin + 0.001
    assert page_queries.equal_within(file, "pass@1", "maxrl", "psr")[0] > shown
    # PSR differs significantly: it is not among the arms that are alike.
    [alike] = page_queries.all_equal_within(file, "pass@1")
    assert shown <= alike < page_queries.equivalence_margin(file, "pass@1", "psr")
