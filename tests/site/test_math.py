"""Equations of the site: Unicode that Markdown leaves alone."""

from __future__ import annotations

import re

import pytest
import site_math

from advsweep.estimators import CATALOGUE

FORMULAS = {name: row["formula"] for name, row in CATALOGUE["estimators"].items()}


def test_an_equation_is_the_text_of_the_docstring_and_names_are_code() -> None:
    made = site_math.formula("Âᵢ = R_max if R = `wrong_one`")
    assert made == ('<span class="formula">Âᵢ = R&#95;max if R = <code>wrong&#95;one</code></span>')


@pytest.mark.parametrize("name", FORMULAS)
def test_every_formula_keeps_its_unicode_and_means_nothing_to_markdown(name: str) -> None:
    made = site_math.formula(FORMULAS[name])
    assert site_math.plain(made) == FORMULAS[name]
    outside = re.sub(r"</?(?:span|code)[^>]*>|&#\d+;", "", made)
    assert not set(outside) & set("\\`*_{}[]<>|&")


def test_columns_of_a_block_stay_columns_and_commas_are_no_columns() -> None:
    made = site_math.formulas("    x = 1,  y = 2    two of them\n    k1               -d\n")
    assert made.startswith('<div class="formulas" style="--columns: 2">\n<div><span>')
    assert "<span><code>k1</code></span><span>" in made
    shown = site_math.plain(made)
    assert shown.split("\n") == ["", "x = 1,  y = 2    two of them", "`k1`    -d", "", ""]
