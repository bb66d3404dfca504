"""Unicode equations as LaTeX: worked examples, and every equation of the package."""

from __future__ import annotations

import html
import re

import pytest
import site_math

from advsweep.estimators import CATALOGUE

FORMULAS = {name: row["formula"] for name, row in CATALOGUE["estimators"].items()}


def latex(text: str) -> str:
    """The equation with $LaTeX$ between the words."""
    shown = re.sub(
        r'<span class="math" data-tex="(.*?)">.*?</span>', r"$\1$", site_math.formula(text)
    )
    return html.unescape(shown)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # KaTeX reads Greek letters, accents, and Unicode's subscripts and superscripts.
        ("Âᵢ = μᵢ₋₁ + s² and p̂", "$Âᵢ = μᵢ₋₁ + s²$ and $p̂$"),
        ("σ < ε_acr", r"$σ < ε_{\text{acr}}$"),
        ("p^(α_s-1) e^λ Q_τ", r"$p^{α_s-1}\,e^λ\,Q_τ$"),
        # Fractions: of two atoms, of products with spaces around the slash, within each other.
        ("C dᵢ/δ", r"$C\,\frac{dᵢ}{δ}$"),
        ("(rᵢ - p) / (σ + ε)", r"$\frac{rᵢ - p}{σ + ε}$"),
        ("1 - a bⱼ / c dⱼ + e", r"$1 - \frac{a\,bⱼ}{c\,dⱼ} + e$"),
        ("((i-1)/i) x", r"$\left(\frac{i-1}{i}\right)\,x$"),
        ("|x|/κ", r"$\frac{|x|}{κ}$"),
        ("G/(G-1) · x", r"$\frac{G}{G-1} \cdot  x$"),
        ("(/δ if d < 0)", r"$(/δ\text{ if }d < 0)$"),
        # Roots and functions.
        ("√p, √(1-p), √vᵢ", r"$\sqrt{p}$, $\sqrt{1-p}$, $\sqrt{vᵢ}$"),
        ("max(0, x)", r"$\operatorname{max}(0,\allowbreak  x)$"),
        ("x - min r", r"$x - \operatorname{min}\,r$"),
        ("mean_t x", r"$\operatorname{mean}_t\,x$"),
        ("passk_mix(k)", r"$\operatorname{passk\_mix}(k)$"),
        ("log(q/p)", r"$\operatorname{log}\!\left(\frac{q}{p}\right)$"),
        # Words stay text, before a relation they are quantities; an article is no variable.
        ("x if p > 0 else -1", "$x$ if $p > 0$ else $-1$"),
        ("r - reward of a rollout", "$r -{}$ reward of a rollout"),
        ("r - mean of the others = x", "$r -{}$ mean of the others $= x$"),
        ("p · grpo", r"$p \cdot {}$ grpo"),
        ("the logits' σ", "the logits' $σ$"),
        ("ACR > τ", r"$\text{ACR} > τ$"),
        ("low = r_max", r"$\text{low} = r_{\text{max}}$"),
        ("R = `wrong`", "$R =$ <code>wrong</code>"),
        ("1e-8", r"$1\cdot 10^{-8}$"),
    ],
)
def test_equations_become_latex(text: str, expected: str) -> None:
    assert latex(text) == expected


@pytest.mark.parametrize("name", FORMULAS)
def test_every_formula_keeps_its_unicode_and_means_nothing_to_markdown(name: str) -> None:
    made = site_math.formula(FORMULAS[name])
    assert site_math.plain(made) == FORMULAS[name]
    assert 'class="math"' in made
    outside = re.sub(r"</?(?:span|code)[^>]*>|&#\d+;", "", made)
    assert not set(outside) & set("\\`*_{}[]<>|&")
    for tex in re.findall(r'data-tex="(.*?)"', made):
        assert not re.search("[`√\ue000-\uf8ff]", html.unescape(tex))
        assert html.unescape(tex).count("{") == html.unescape(tex).count("}")


def test_columns_of_a_block_stay_columns_and_commas_are_no_columns() -> None:
    made = site_math.formulas("    x = 1,  y = 2    two of them\n    k1               -d\n")
    assert made.startswith('<div class="formulas" style="--columns: 2">\n<div><span>')
    assert "<span><code>k1</code></span><span>" in made
    shown = re.sub("</?code>", "", site_math.plain(made))
    assert shown.split("\n") == ["", "x = 1,  y = 2    two of them", "k1    -d", "", ""]
