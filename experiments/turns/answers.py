"""What the answer of the study of turns says of its runs and tables, and the page's table."""

from __future__ import annotations

import page_queries
import pandas as pd
from scipy import stats

from advsweep.statistics import compare_paired

RUNS = "turns/runs.csv"
HALVES = ("table", "tiny")
LENGTHS = ("short", "long")
SETTINGS = tuple(f"{half}_{length}" for half in HALVES for length in LENGTHS)
ARMS = {
    "rloo": ("rloo",),
    "grpo": ("grpo",),
    "psr": ("psr",),
    "turn_return": ("turn_return",),
    "gigpo": ("gigpo",),
    "by_turn": ("by_turn", "estimator.base=rloo"),
    "vine": ("vine",),
}
"""The arms with the rows of the tables. The turn form of PSR is PSR itself: `same_turn_form`."""
EARLY = "credit/correlation@first5"
OF_BASE = "credit/correlation"


def credit(setting: str, arm: str) -> list[float]:
    """The correlation of an arm's credit with the truth, in the mean of the seeds.

    That of the first five steps on the table, and that of the base models of the transformer.
    """
    values = _credit_by_seed(setting)[arm]
    return [float(values.mean())]


def gain(setting: str, arm: str) -> list[float]:
    """The difference of an arm's last pass@1 to RLOO's, with its interval."""
    return _difference(_row(setting, arm))


def gains(arm: str, *settings: str) -> list[float]:
    """The differences of an arm to RLOO in some settings, without intervals."""
    return [gain(setting, arm)[0] for setting in settings]


def wins(arm: str, *settings: str) -> list[float]:
    """In how many settings an arm's pass@1 is significantly above RLOO's."""
    rows = [_row(setting, arm) for setting in settings]
    return [sum(_is_above(row) for row in rows)]


def best(setting: str, arm: str) -> list[float]:
    """No value; an error unless an arm alone has the first place in the report of a setting."""
    place = _row(setting, arm)["rank_high"]
    others = [_row(setting, other)["rank_low"] for other in ARMS if other != arm]
    if place != 1 or min(others) < 2:
        raise page_queries.QueryError(f"{arm} is not the best of {setting}: {place}")
    return []


def best_without_values(setting: str, arm: str) -> list[float]:
    """No value; an error unless an arm's mean is the largest of those that measure no values."""
    largest = max(
        (name for name in ARMS if name != "vine"), key=lambda a: _row(setting, a)["pass@1"]
    )
    if largest != arm:
        raise page_queries.QueryError(f"{largest} has a larger pass@1 in {setting} than {arm}")
    return []


def credit_lead(arm: str, *settings: str) -> list[float]:
    """The most by which an arm's credit is nearer to the truth than RLOO's."""
    leads = [credit(setting, arm)[0] - credit(setting, "rloo")[0] for setting in settings]
    return [max(leads)]


def losses(arm: str, *settings: str) -> list[float]:
    """In how many settings an arm's pass@1 is significantly below RLOO's."""
    rows = [_row(setting, arm) for setting in settings]
    return [sum(row["pass@1_difference"] < 0 and _is_told(row) for row in rows)]


def rank_correlation(setting: str, *left_out: str) -> list[float]:
    """The rank correlation of credit and pass@1 over the arms, the mean of the seeds' own.

    With its interval over the seeds: it holds for these arms, not for others.
    """
    credits = _credit_by_seed(setting)
    ends = _ends(setting)
    arms = [arm for arm in credits.columns if arm not in left_out]
    found = [
        float(stats.spearmanr(credits.loc[seed, arms], ends.loc[seed, arms]).statistic)
        for seed in ends.index
    ]
    compared = compare_paired(found, [0.0] * len(found))
    return [compared.difference, compared.low, compared.high]


def arms_correlated(setting: str) -> list[float]:
    """How many arms `rank_correlation` is over, without the credit that is its own truth."""
    return [float(len([arm for arm in _credit_by_seed(setting).columns if arm != "vine"]))]


def tokens_share(setting: str, arm: str) -> list[float]:
    """How many times RLOO's generated tokens an arm has used at the end."""
    ours, others = (_row(setting, name)["total/tokens"] for name in (arm, "rloo"))
    return [ours / others]


def at_tokens(length: str, arm: str) -> list[float]:
    """The difference of an arm to RLOO at equal generated tokens, with its interval."""
    return _difference(_row(f"tokens_{length}", arm))


def steps_at_tokens(length: str, arm: str) -> list[float]:
    """How many steps an arm has made at the tokens at which arms are compared."""
    return [float(_row(f"tokens_{length}", arm)["total/steps"])]


def base(*settings: str) -> list[float]:
    """The pass@1 of the base models."""
    return [page_queries.only_row(f"turns/{name}.csv", ["base"])["pass@1"] for name in settings]


def aa(setting: str) -> list[float]:
    """The difference of RLOO with other rollouts to RLOO."""
    row = page_queries.only_row(f"turns/{setting}.csv", ["rloo (A/A)"])
    return [float(row["pass@1_difference"])]


def tuning_seeds(half: str) -> list[float]:
    """How many seeds the tuning of a half has."""
    runs = page_queries.table(RUNS)
    found = {
        runs[runs["sweep"] == f"turns-{half}-{length}-tuning"]["seed"].nunique()
        for length in LENGTHS
    }
    (number,) = found
    return [float(number)]


def runs() -> list[float]:
    """How many runs the study has."""
    return [float(len(page_queries.table(RUNS)[["sweep", "row", "seed"]].drop_duplicates()))]


def arms() -> list[float]:
    """How many estimators are compared."""
    return [float(len(ARMS))]


def loses_at_tokens(length: str, arm: str) -> list[float]:
    """No value; an error unless an arm is significantly below RLOO at equal tokens."""
    row = _row(f"tokens_{length}", arm)
    if row["pass@1_difference"] >= 0 or not _is_told(row):
        raise page_queries.QueryError(f"{arm} does not lose at equal tokens, {length} walks")
    return []


def wins_and_loses(arm: str, won: str, lost: str) -> list[float]:
    """No value; an error unless an arm is above RLOO in one setting and below it in another."""
    if wins(arm, won) != [1] or losses(arm, lost) != [1]:
        raise page_queries.QueryError(f"{arm} does not win in {won} and lose in {lost}")
    return []


def ranked() -> list[float]:
    """In how many settings the rank correlation of arms without values is above 0 by its interval.

    On the transformer the credit of `vine` was not measured.
    """
    return [float(sum(rank_correlation(setting, "vine")[1] > 0 for setting in SETTINGS))]


def settings() -> list[float]:
    """How many settings the study has: two models with two lengths of walks."""
    return [float(len(SETTINGS))]


def same_turn_form() -> list[float]:
    """No value; an error unless PSR and its turn form have the same numbers on the table."""
    for setting in SETTINGS[:2]:
        table = page_queries.table(f"turns/{setting}.csv")
        form = ((table["estimator"] == "by_turn") & (table["estimator.base"] == "psr")).to_numpy()
        own = (table["estimator"] == "psr").to_numpy()
        values = table[["optimizer.lr", "pass@1", "entropy/right_rarefied"]].to_numpy()
        if (values[form] != values[own]).any():
            raise page_queries.QueryError(f"PSR and its turn form differ: {setting}")
    return []


def _row(file: str, arm: str) -> dict[str, float]:
    return page_queries.only_row(f"turns/{file}.csv", _conditions(file, arm))


def _difference(row: dict[str, float]) -> list[float]:
    """Return the difference of a row's pass@1 to RLOO's, with its interval."""
    return [float(row[f"pass@1_difference{end}"]) for end in ("", "_low", "_high")]


def _conditions(file: str, arm: str) -> list[str]:
    """Return what says which rows of a table are an arm's: its turn form has one base or two."""
    columns = page_queries.table(f"turns/{file}.csv").columns
    name, *others = ARMS[arm]
    return [name, *(other for other in others if other.partition("=")[0] in columns)]


def _is_told(row: dict[str, float]) -> bool:
    return row["pass@1_p_adjusted"] <= page_queries.LEVEL


def _is_above(row: dict[str, float]) -> bool:
    return row["pass@1_difference"] > 0 and _is_told(row)


def _credit_by_seed(setting: str) -> pd.DataFrame:
    """Return the credit of each arm, a column, with each seed, a row."""
    column = EARLY if setting.startswith("table") else OF_BASE
    table = page_queries.table(f"turns/credit_{setting}.csv")
    return _by_seed(table, column)


def _ends(setting: str) -> pd.DataFrame:
    """Return the last pass@1 of each arm, a column, with each seed, a row."""
    runs = page_queries.table(RUNS)
    runs = runs[runs["sweep"] == f"turns-{setting.replace('_', '-')}"]
    runs = runs[runs["step"] == runs["step"].max()]
    runs = runs.assign(**{"estimator.base": runs["row"].map(_base_of)})
    return _by_seed(runs, "pass@1")


def _base_of(row: str) -> str:
    """Return the base that the name of a row has; empty without one."""
    keys = dict(part.split("=", 1) for part in row.split() if "=" in part)
    return keys.get("estimator.base", "")


def _has_values(table: pd.DataFrame, key: str) -> bool:
    """Whether a table tells arms apart by a key: one that all share is no column of it."""
    return key in table.columns and (table[key].fillna("") != "").any()


def _by_seed(table: pd.DataFrame, column: str) -> pd.DataFrame:
    found = {}
    for arm, (name, *conditions) in ARMS.items():
        rows = table[table["estimator"] == name]
        for condition in conditions:
            key, _, value = condition.partition("=")
            rows = rows[rows[key] == value] if _has_values(table, key) else rows
        if not rows.empty:
            found[arm] = rows.set_index("seed")[column]
    return pd.DataFrame(found).dropna()


def table() -> str:
    """What each arm comes to in the four settings, in the order of the table's long walks."""
    settings = {
        "table_short": "table, short",
        "table_long": "table, long",
        "tiny_short": "transformer, short",
        "tiny_long": "transformer, long",
    }
    headings = ["estimator", *settings.values(), "credit: table", "credit: transformer"]
    lines = [f"| {' | '.join(headings)} |", f"| {' | '.join([':--'] * len(headings))} |"]
    names = sorted(ARMS, key=lambda arm: -_row("table_long", arm)["pass@1"])
    for arm in names:
        cells = [_cell(setting, arm) for setting in settings]
        cells += [_credit_cell(half, arm) for half in HALVES]
        lines.append(f"| {_name(arm)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _name(arm: str) -> str:
    return "`by_turn` of `rloo`, by state" if arm == "by_turn" else f"`{arm}`"


def _cell(setting: str, arm: str) -> str:
    row = _row(setting, arm)
    if arm == "rloo":
        return page_queries.share_text(row["pass@1"])
    difference, low, high = gain(setting, arm)
    return page_queries.interval_text(difference, low, high, is_significant=_is_told(row))


def _credit_cell(half: str, arm: str) -> str:
    if arm == "vine":
        return "(its own)" if half == "table" else "–"
    values = [credit(f"{half}_{length}", arm)[0] for length in LENGTHS]
    return ", ".join(page_queries.share_text(value) for value in values)
