"""Hold the numbers of the documents against the committed results, and write them anew.

    python tools/page_numbers.py            name each number that is not what its query says
    python tools/page_numbers.py --write    write all numbers and blocks again (`make numbers`)

A comment that readers do not see names the query of the numbers right before it:

    PSR ends higher, by +.084 [+.063, +.106]<!-- = difference leaderboard/hard.csv psr pass@1 -->.

The query returns one or more values; they belong to as many numbers before the comment, the last
value to the last number. How a number is written decides how it is rounded: `.084`, `+0.084`,
`11 %` (a share of 1), `2e-4`, `1,024`, `eight`. "Significant" and "equivalent" are values too, with
or without a "not" in the same clause: `verdict` and `equivalent` say which. Braces repeat a query,
as in a shell: `value leaderboard/{hard,easy}.csv base pass@1` returns two values. `page_queries.py`
has the queries. Whole tables stand between `<!-- block: QUERY -->` and `<!-- /block -->`.

Every number word from two on and every number outside code, links and blocks needs a query, or a
line with its reason in `unsourced_numbers.yaml`, and so does a name with a number, such as a model.
README.md, docs/index.md, docs/studies.md and docs/concepts/which.md are checked whole, the pages of
the studies in their answers: paragraphs that begin with **Answer.**, **Result.** or **Verdict.**,
and the section "Verdict".
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from page_queries import QueryError, Value, evaluate, generate, table

ROOT = Path(__file__).resolve().parents[1]
# These pages check programs once, by runs of which no table was kept.
CHECKS = ("gsm8k_end_to_end", "two_backends", "two_stage_toy")
WHOLE = ("README.md", "docs/index.md", "docs/studies.md", "docs/concepts/which.md")
# Of other pages the numbers that have a query.
BOUND = ("docs/audition.md",)
EXEMPT = ROOT / "tools" / "unsourced_numbers.yaml"
WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    *("nineteen", "twenty"),
)

_QUERY = re.compile(r"<!-- = (?P<query>.*?) -->", re.DOTALL)
_BLOCK = re.compile(
    r"(?P<open><!-- block: (?P<query>.*?) -->\n)(?P<body>.*?)(?P<close><!-- /block -->)", re.DOTALL
)
# Code, generated blocks, comments, tags, the numbers of lists and the addresses of links hold no
# numbers of results.
_OPAQUE = re.compile(
    r"<!-- block: .*?<!-- /block -->|^```.*?^```|`[^`\n]*`|<!--.*?-->|^\d+\. |\]\([^)]*\)"
    r"|<[a-z/][^>]*>",
    re.DOTALL | re.MULTILINE,
)
_COMMAND = re.compile(r"^(?:[^#\n]|(?<! )#)*")
# "one" is an article as often as a number, and is left out.
_NUMBER = re.compile(
    r"(?<![\w@./^-])(?P<sign>[+±-]?)(?P<digits>\d{1,3}(?:,\d{3})+|\d*\.\d+|\d+)(?P<power>e[+-]?\d+)?"
    r"(?![\w@]|\.\d|-\w)(?P<percent>(?=(?: to [\d.]+)?\s?%))?"
    rf"|\b(?P<word>{'|'.join(WORDS[2:])})\b(?!-)"
    r"|\b(?P<verdict>significan(?:t|tly)|equivalent)\b",
    re.IGNORECASE,
)
# A name with a number in it: `pass@32`, a model, a claim's id.
_NAME = re.compile(r"(?<![\w/])[A-Za-z][A-Za-z_@-]*\d[\w@-]*(?:\.\d[\w-]*)?")
_CLAIM_ID = re.compile(r"[A-Z]{2}\d{2}[a-z]?")
_CLAUSE_END = re.compile(r"[.,;:!?()|]")
_NEGATION = re.compile(r"\b(?:not|no|none|neither|nor|nothing|cannot|without)\b", re.IGNORECASE)
# An answer goes to the next heading, table or paragraph with another of these labels.
_LABELS = "Question|Command|Table|Limits|Predictions|Rates|Cost|Hard prompts|On another"
_ANSWER = re.compile(
    rf"^(?:\*\*(?:Answer|Result|Verdict)\.\*\*|## Verdict\n).*?(?=^#|^\||^\*\*(?:{_LABELS})|\Z)",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Token:
    """A number, a number word or a verdict in a text, from `start` to `end`."""

    start: int
    end: int
    text: str
    match: re.Match[str]
    negated: bool

    @property
    def is_verdict(self) -> bool:
        return self.match["verdict"] is not None

    def written(self, value: Value) -> str:
        """Return a value in the form in which this token is written."""
        if self.is_verdict:
            return str(value)
        if isinstance(value, str):
            raise QueryError(f"{value!r} is a verdict and no number")
        if self.match["word"]:
            return self._word(value)
        return self._number(value)

    def _word(self, value: float) -> str:
        if value != int(value) or not 0 <= value < len(WORDS):
            return f"{value:g}"
        word = WORDS[int(value)]
        return word.capitalize() if self.text[0].isupper() else word

    def _number(self, value: float) -> str:
        digits = self.match["digits"]
        places = len(digits.partition(".")[2])
        sign = self.match["sign"]
        if self.match["percent"] is not None:
            value *= 100
        if sign == "±":
            return "±" + _plain(abs(value), places, digits)
        if self.match["power"]:
            mantissa, _, power = f"{value:.{places}e}".partition("e")
            return f"{mantissa}e{int(power)}"
        written = _plain(abs(value), places, digits)
        is_zero = float(written.replace(",", "")) == 0
        if value < 0 and not (is_zero and not sign):
            return f"-{written}"
        # A difference of zero keeps the sign that it has before rounding, and a positive one "+"
        # where any sign is written.
        return f"+{written}" if sign else written

    @property
    def value(self) -> str:
        """What the text says here, in the words of a query."""
        if not self.is_verdict:
            return self.text
        stem = "equivalent" if self.text.lower().startswith("equi") else "significant"
        return f"not {stem}" if self.negated else stem


def _plain(value: float, places: int, like: str) -> str:
    grouped = "," if "," in like else ""
    written = f"{value:{grouped}.{places}f}"
    return written.removeprefix("0") if like.startswith(".") else written


def tokens(text: str) -> list[Token]:
    """Return the numbers, number words and verdicts of a text, in order."""
    visible = _OPAQUE.sub(_hide, text)
    found = []
    for match in _NUMBER.finditer(visible):
        negated = False
        if match["verdict"]:
            clause = _CLAUSE_END.split(visible[: match.start()])[-1]
            negated = bool(_NEGATION.search(clause))
        found.append(Token(match.start(), match.end(), match[0], match, negated=negated))
    return found


def _hide(match: re.Match[str]) -> str:
    """Blank out what holds no results; the comments of commands are prose."""
    if not match[0].startswith("```sh"):
        return re.sub(r"[^\n]", " ", match[0])
    lines = match[0].split("\n")
    return "\n".join(_COMMAND.sub(lambda code: " " * len(code[0]), line) for line in lines)


def regions(text: str, name: str) -> list[tuple[int, int]]:
    """Return the parts of a document in which every number needs a source."""
    if name in WHOLE:
        return [(0, len(text))]
    if name in BOUND:
        return []
    return [match.span() for match in _ANSWER.finditer(text)]


@functools.cache
def unsourced() -> dict[str, dict[str, str]]:
    """Return what has no source: names, and for each document phrases, with the reasons."""
    found: dict[str, dict[str, str]] = yaml.safe_load(EXEMPT.read_text("utf-8"))
    return found


def exempt_phrases() -> dict[str, dict[str, str]]:
    """Return, for each document, phrases whose numbers have no source, with the reasons."""
    return {name: phrases for name, phrases in unsourced().items() if name != "names"}


@dataclass(frozen=True)
class Binding:
    """A token and what its query says; no value if no query names it."""

    token: Token
    query: str | None
    value: Value | None


def bindings(text: str) -> Iterator[Binding]:
    """Yield every number and verdict of a document with the value of its query.

    Raises:
        QueryError: a query cannot be evaluated, or has more values than there are numbers.
    """
    waiting = tokens(text)
    for comment in _QUERY.finditer(text):
        before = [token for token in waiting if token.end <= comment.start()]
        waiting = waiting[len(before) :]
        values = evaluate(comment["query"])
        if len(values) > len(before):
            raise QueryError(f"{comment['query']}: {len(values)} values for {len(before)} numbers")
        free = len(before) - len(values)
        for token in before[:free]:
            yield Binding(token, None, None)
        for token, value in zip(before[free:], values, strict=True):
            yield Binding(token, comment["query"], value)
    for token in waiting:
        yield Binding(token, None, None)


def check(text: str, name: str) -> list[str]:
    """Return a line for each number, verdict and block that is not what its query says."""
    return [*check_numbers(text, name), *check_names(text, name), *check_blocks(text, name)]


def check_names(text: str, name: str) -> list[str]:
    """Return a line for each name with a number that is neither listed nor a claim's id."""
    listed = set(unsourced()["names"])
    visible = _OPAQUE.sub(_hide, text)
    problems = []
    for start, end in regions(text, name):
        for match in _NAME.finditer(visible, start, end):
            if match[0] not in listed and not _is_claim(match[0], name):
                problems.append(f"{name}: {match[0]!r} is no known name")
    return problems


def _is_claim(id: str, name: str) -> bool:
    if not _CLAIM_ID.fullmatch(id):
        return False
    claims = table(f"{Path(name).parent.name}/claims.csv")["claim"]
    # A statement of a paper may be judged in parts: AV13a and AV13b.
    return any(claim.startswith(id) for claim in claims)


def check_blocks(text: str, name: str) -> list[str]:
    """Return a line for each block that is not what its query makes."""
    return [
        f"{name}: the block {block['query']!r} is not what its query makes"
        for block in _BLOCK.finditer(text)
        if block["body"] != generate(block["query"])
    ]


def check_numbers(text: str, name: str) -> list[str]:
    """Return a line for each number and verdict outside blocks that is not what its query says."""
    exempt = _exempt_spans(text, name)
    required = regions(text, name)
    problems = []
    try:
        for binding in bindings(text):
            token = binding.token
            line = f"{name}:{text.count(chr(10), 0, token.start) + 1}"
            if binding.query is None:
                if _lies_in(token, required) and not _lies_in(token, exempt):
                    problems.append(f"{line}: {token.text!r} has no query: {_around(text, token)}")
                continue
            expected = token.written(binding.value)
            if expected != token.value:
                problems.append(f"{line}: {token.value!r} is {expected!r} by {binding.query}")
    except QueryError as error:
        problems.append(f"{name}: {error}")
    return problems


def _lies_in(token: Token, spans: list[tuple[int, int]]) -> bool:
    return any(first <= token.start and token.end <= last for first, last in spans)


def _around(text: str, token: Token) -> str:
    return text[max(token.start - 30, 0) : token.end + 30].replace("\n", " ")


def _exempt_spans(text: str, name: str) -> list[tuple[int, int]]:
    spans = []
    for phrase in exempt_phrases().get(name, {}):
        spans += [match.span() for match in re.finditer(re.escape(phrase), text)]
    return spans


def rewrite(text: str) -> str:
    """Return a document with its numbers and blocks as the queries have them.

    A verdict is a sentence, which a person rewrites: `check` names it.
    """
    parts = []
    place = 0
    for binding in bindings(text):
        token = binding.token
        if binding.query is None or token.is_verdict:
            continue
        parts.append(text[place : token.start])
        parts.append(token.written(binding.value))
        place = token.end
    text = "".join(parts) + text[place:]
    return _BLOCK.sub(lambda block: block["open"] + generate(block["query"]) + block["close"], text)


def documents() -> list[str]:
    """Return the names of the documents whose numbers are checked."""
    studies = sorted(path.parent for path in ROOT.glob("experiments/*/README.md"))
    pages = [f"experiments/{path.name}/README.md" for path in studies if path.name not in CHECKS]
    return [*WHOLE, *BOUND, *pages]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the numbers into the documents")
    parser.add_argument("documents", nargs="*", default=documents())
    options = parser.parse_args()
    problems = []
    for name in options.documents:
        path = ROOT / name
        text = path.read_text("utf-8")
        if options.write:
            path.write_text(rewrite(text), "utf-8")
            text = path.read_text("utf-8")
        problems += check(text, name)
    for problem in problems:
        sys.stdout.write(f"{problem}\n")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
