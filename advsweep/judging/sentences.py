"""What a judge says: checks, relatives and the verdict, in lines for people."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from advsweep.errors import counted, first_of
from advsweep.judging.ideas import Examination, Idea
from advsweep.judging.leaderboard import BASELINE, ListedArm
from advsweep.judging.plans import Setting
from advsweep.judging.verdict import Measured, OutcomeRow, Verdict, VerdictKind

WIDTH = 80

_SHOWN_RELATIVES = 3


def wrap(text: str, indent: str = "", first: str | None = None) -> list[str]:
    """Return the lines of a text at most `WIDTH` wide.

    Args:
        indent: before each line.
        first: before the first line; None for the same.
    """
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def describe_examination(idea: Idea, examination: Examination) -> list[str]:
    """Return the checks, the masses and the nearest relatives of an idea."""
    code = idea.estimator.named_code
    where = "" if code is None else f" ({code.where}, {code.object})"
    lines = wrap(f"{idea.label}{where}: it can be used. What it does:", "  ", "")
    for each in examination.properties:
        # An unusual property is none that is wrong.
        sign = " " if each.is_usual else "!"
        lines += wrap(f"{each.name}: {each.sentence}", "    ", f"  {sign} ")
    lines += _describe_masses(examination)
    lines += wrap(describe_relatives(examination), "  ", "")
    return lines


def _describe_masses(examination: Examination) -> list[str]:
    if not examination.masses:
        return wrap("masses: none, as it does not depend on the rewards of a group alone", "  ", "")
    lines = [f"masses of a step at group size {examination.group_size}, by solve rate:"]
    rows = {
        "solve rate": [f"{each.rate:g}" for each in examination.masses],
        "right answers up (m_S)": [f"{each.success:.3f}" for each in examination.masses],
        "wrong answers down (m_F)": [f"{each.failure:.3f}" for each in examination.masses],
    }
    for name, numbers in rows.items():
        lines.append(f"  {name:<26}{''.join(f'{number:>8}' for number in numbers)}")
    return lines


def describe_relatives(examination: Examination) -> str:
    """Name the nearest relatives, and say if the idea is one of them times a number."""
    nearest = examination.relatives[:_SHOWN_RELATIVES]
    if not nearest:
        return "nearest relatives: none, as it gives no advantage that depends on rewards"
    same = [each.name for each in examination.relatives if each.is_same]
    multiples = [each for each in nearest if each.is_multiple]
    cosines = ", ".join(f"{each.name} {each.cosine:.3f}" for each in nearest)
    text = f"nearest relatives (cosine of the advantages over all solve rates): {cosines}"
    if examination.is_baseline:
        return f"{text}. This is {BASELINE}: the same advantages in all that was tried"
    if same:
        return f"{text}. With 0/1 rewards this is {same[0]}, in a first step"
    if multiples:
        first = multiples[0]
        return f"{text}. With 0/1 rewards this is {first.name} times {first.shown_factor}"
    return text


# Verdicts


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An idea with what was found.

    Attributes:
        sweep: the name of its sweep.
    """

    idea: Idea
    setting: Setting
    examination: Examination
    verdict: Verdict
    sweep: str


def describe_verdict(judged: Judged) -> list[str]:
    """Return a verdict in sentences: what it is, how large, where it stands, what is not said."""
    verdict = judged.verdict
    if verdict.kind is VerdictKind.SAME:
        return [
            f"{judged.idea.label}: {BASELINE} by construction. Its advantages are those of "
            f"{BASELINE} in every group and step that was tried, so that a training of one is a "
            "training of the other but for the last bits. Nothing was trained."
        ]
    if verdict.kind is VerdictKind.FAILED:
        return list(_describe_failure(judged))
    sentences = [
        _describe_kind(judged),
        *_describe_caution(verdict),
        *_describe_matched(verdict),
        _describe_rates(verdict),
    ]
    if verdict.listed:
        sentences.append(describe_place(verdict.outcomes[0], verdict.listed))
    relatives = describe_relatives(judged.examination)
    sentences.append(f"{relatives[0].upper()}{relatives[1:]}.")
    return [*sentences, *_describe_limits(judged)]


def _describe_failure(judged: Judged) -> Iterator[str]:
    verdict = judged.verdict
    where = f"on {judged.setting.name} prompts"
    if not verdict.seeds:
        yield f"{judged.idea.label}: failed {where}. At none of its learning rates did it train."
    else:
        at = "" if verdict.rate is None else f" at the rate {verdict.rate:g}, which it chose,"
        yield f"{judged.idea.label}: failed {where}. All {verdict.seeds} runs{at} failed."
    if verdict.failures:
        yield f"Why: {first_of(list(verdict.failures), 2)}."


def _describe_kind(judged: Judged) -> str:
    """Return the verdict with the size of the first difference."""
    verdict = judged.verdict
    first = verdict.outcomes[0]
    kinds = {
        VerdictKind.EQUIVALENT: f"equivalent to {BASELINE} within {verdict.margin:g}",
        VerdictKind.BETTER: f"better than {BASELINE}",
        VerdictKind.WORSE: f"worse than {BASELINE}",
        VerdictKind.OPEN: f"neither different from {BASELINE} nor equivalent to it within "
        f"{verdict.margin:g}, as far as these runs can tell",
    }
    where = f"on {judged.setting.name} prompts"
    head = f"{judged.idea.label}: {kinds[verdict.kind]} in {first.header}, {where}"
    early = verdict.settled_by
    if early is not None:
        return (
            f"{head}: {_signed(early.difference, early.low, early.high)} after {early.seeds} of "
            f"{early.most} seeds, which settled it (the interval holds at every look, with "
            f"{100 * early.level:.0f} %)."
        )
    shown = show_measured(first.to_baseline)
    least = first.to_baseline.equal_within
    # Differences without spread, as where nothing is learned, have no such margin.
    if verdict.kind is VerdictKind.OPEN and math.isfinite(least):
        return f"{head}: {shown}; equivalent within {least:.2g} at 5 %."
    significant = "significant, and " if first.to_baseline.is_significant else ""
    if verdict.kind is VerdictKind.EQUIVALENT:
        return f"{head}: {shown}; the difference is {significant}smaller than the margin."
    return f"{head}: {shown}."


def _describe_caution(verdict: Verdict) -> Iterator[str]:
    if verdict.settled_by is not None:
        yield (
            "The 95 % intervals in tables and below are a little too narrow, as the race chose the "
            "number of seeds; the one above holds."
        )
    if verdict.without_signal:
        yield f"Nothing can be told: {'; '.join(verdict.without_signal)}."
    repetition = verdict.outcomes[0].repetition
    if repetition is not None and repetition.is_significant:
        yield (
            f"Caution: {BASELINE} differs from itself here (A/A, {show_measured(repetition)}), so "
            "that chance explains differences of this size."
        )


def _describe_matched(verdict: Verdict) -> Iterator[str]:
    if not verdict.matched:
        yield (
            "At equal pass@1: no comparison, as too few seeds come to an equal pass@1 between two "
            "evaluations."
        )
        return
    headers = {row.column: row.header for row in verdict.outcomes}
    parts = [
        f"{headers.get(each.outcome, each.outcome)} {_signed(each.difference, each.low, each.high)}"
        + (f" ({counted(each.n, 'seed')})" if each.n < verdict.seeds else "")
        for each in verdict.matched
    ]
    level = verdict.matched[0].level
    yield f"At equal pass@1 ({_plain(level)} in the mean): {'; '.join(parts)}."


def _describe_rates(verdict: Verdict) -> str:
    if verdict.rate is None:
        return (
            "Learning rates: both have that of the sweep file, and nothing was tuned, so that a "
            "difference may be one of rates."
        )
    edge = ""
    if verdict.is_at_edge:
        edge = ", an edge of the grid: another one may be better"
    chosen = f"{verdict.rate:g} of {_in_words(verdict.rates)} on two other bases{edge}"
    return (
        f"Learning rates: {chosen}; {BASELINE} has {verdict.baseline_rate:g}, which the "
        "leaderboard's tuning chose on the same two. Two bases do not tell neighbouring rates "
        "apart."
    )


def _in_words(number: int) -> str:
    return "five" if number == 5 else str(number)


def describe_place(outcome: OutcomeRow, listed: Iterable[ListedArm]) -> str:
    """Say where an idea stands among the leaderboard's arms, by their differences to RLOO."""
    differences = {
        arm.name: arm.differences["pass@1"].difference for arm in listed if arm.differences
    }
    differences[BASELINE] = 0.0
    own = outcome.to_baseline
    above = sorted((d, name) for name, d in differences.items() if d > own.difference)
    below = sorted((d, name) for name, d in differences.items() if d <= own.difference)
    inside = sum(own.low <= d <= own.high for d in differences.values())
    ends = []
    if above:
        ends.append(f"below {above[0][1]} ({_signed_number(above[0][0])})")
    if below:
        ends.append(f"above {below[-1][1]} ({_signed_number(below[-1][0])})")
    return (
        f"Among the leaderboard's {len(differences)} arms (differences to {BASELINE} of eight "
        f"other seeds): place {len(above) + 1}, {' and '.join(ends)}; {_describe_inside(inside)}."
    )


def _describe_inside(arms: int) -> str:
    """Say how many arms of the leaderboard are within the interval of an idea's difference."""
    # An arm outside is not told apart by this alone, as its own difference has an interval too.
    if arms == 0:
        return "none of them is within its interval"
    are = "one of them is" if arms == 1 else f"{arms} of them are"
    return f"{are} within its interval, and cannot be told from it so"


def _describe_limits(judged: Judged) -> Iterator[str]:
    """Say what the evidence does not say."""
    verdict = judged.verdict
    bound = round(100 * verdict.failure_bound)
    beyond = "anything beyond this setting"
    if judged.setting.is_listed:
        beyond = (
            "other tasks, larger models and longer trainings (this is the tiny model, one family "
            "of puzzles, 150 steps, still rising)"
        )
    yield (
        f"Not said: {beyond}; rare failures ({verdict.failed} of "
        f"{counted(verdict.seeds, 'seed')} failed, and failures of up to {bound} % of runs are not "
        "excluded)."
    )
    if verdict.ideas > 1:
        yield (
            f"{verdict.ideas} ideas have been judged on these seeds: the best of several looks "
            "better than it is. The other ranges have other prompts."
        )


def describe_table(judged: Judged) -> list[str]:
    """Return the outcomes of an idea beside RLOO's, and RLOO's beside its own."""
    outcomes = judged.verdict.outcomes
    if not outcomes:
        return []
    label = judged.idea.label
    header = f"{'':<17}{label[:7]:>8}{BASELINE:>8}   {'difference':<24}{'A/A of ' + BASELINE}"
    lines = [header.rstrip()]
    for row in outcomes:
        repetition = "" if row.repetition is None else show_measured(row.repetition)
        mark = "*" if row.to_baseline.is_significant else " "
        lines.append(
            f"{row.header:<17}{_plain(row.idea):>8}{_plain(row.baseline):>8}  {mark}"
            f"{show_measured(row.to_baseline):<24}{repetition}".rstrip()
        )
    n = outcomes[0].to_baseline.n
    return [*lines, *wrap(f"means over {counted(n, 'seed')}, 95 % intervals; *: p adj at most .05")]


def show_measured(measured: Measured) -> str:
    """Return a difference with its interval, such as `+.003 [-.006, +.012]`."""
    return _signed(measured.difference, measured.low, measured.high)


def _signed(difference: float, low: float, high: float) -> str:
    return f"{_signed_number(difference)} [{_signed_number(low)}, {_signed_number(high)}]"


def _signed_number(value: float) -> str:
    sign = "-" if round(value, 3) < 0 else "+"
    return f"{sign}{_plain(abs(value))}"


def _plain(value: float) -> str:
    # Without the sign of a zero.
    text = f"{round(value, 3) + 0.0:.3f}"
    return text.removeprefix("0") if text.startswith("0.") else text


def joined(lines: Iterable[str]) -> str:
    """Return lines as one text that ends with a line break."""
    return "".join(f"{line}\n" for line in lines)
