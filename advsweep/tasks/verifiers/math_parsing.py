"""Formulas as sympy objects, read and compared by math-verify, and by value where they are numbers.

math-verify rounds to six decimals, takes differences below 1e-15 for none, and takes what it can
read of a text for the whole. Here numbers are compared relatively, with 60 digits, and a text of
which a part would be dropped is not read.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from advsweep.tasks.verifiers.math_notation import latex_of
from advsweep.tasks.verifiers.number_reader import read_quantity

_CACHED = 4096
_DIGITS = 60
_LEAST_BITS = 100  # of these; fewer are left where the digits of a difference cancel
_EXACT = 1e-40
_ROUNDED = 1e-6
_FEWEST_DIGITS = 6
_APPROXIMATE = re.compile(r"\\(?:approx|simeq|sim|cong|doteq)(?![a-z])")


def parse(text: str) -> Any | None:
    """Return an answer as a sympy object; None if it cannot be read as a whole."""
    from math_verify import LatexExtractionConfig
    from math_verify import parse as parse_text

    latex = latex_of(text)
    if not latex or _APPROXIMATE.search(latex):
        return None
    # Some answers can be read in one of the forms only: percentages, lists, several lines.
    for form in (f"\\boxed{{{latex}}}", f"${latex.replace('$', '')}$"):
        found: list[Any] = parse_text(
            form,
            extraction_config=(LatexExtractionConfig(),),
            fallback_mode="no_fallback",
            parsing_timeout=None,
        )
        if found:
            return found[0]
    return None


@functools.lru_cache(_CACHED)
def parse_reference(text: str) -> Any | None:
    """Return a reference answer as a sympy object; dollar signs in data are only LaTeX's."""
    return parse(text.replace("$", ""))


def are_equal(gold: str, answer: str) -> bool:
    """Return whether two formulas are equal; the reference can be read."""
    from math_verify import verify
    from sympy import Eq, Set

    expected = parse_reference(gold)
    given = parse(_exact_side(answer))
    if expected is None or given is None:
        return False
    if _is_false_equation(given) or _repeats_one_answer(given, answer):
        return False
    solved, given = _solved_for_moduli(expected, given)
    is_set = solved is not expected or _is_surely_a_set(solved)
    expected = solved
    if isinstance(given, Eq) and not isinstance(expected, Eq) and _is_to_be_solved(given):
        return False
    if isinstance(expected, Eq) and isinstance(expected.rhs, Set):  # x \in [0, 1)
        is_set = True
        expected = expected.rhs
    if is_set:
        given = _as_union(given)
    numbers = _compare_numbers(expected, given, answer)
    if numbers is not None:
        return numbers
    return bool(
        verify(
            [expected],
            [given],
            allow_set_relation_comp=is_set,
            timeout_seconds=None,
            raise_on_error=True,
        )
    )


_BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|\{,\}")


def _repeats_one_answer(given: Any, answer: str) -> bool:
    """Return whether a list names the same answer several times, as in `7, 7`."""
    from sympy import FiniteSet

    return (
        isinstance(given, FiniteSet)
        and len(given.args) == 1
        and re.search(r"[,;]|\band\b", _BRACKETS.sub("", answer)) is not None
    )


def _solved_for_moduli(expected: Any, given: Any) -> tuple[Any, Any]:
    """Return two formulas with `|x| < 1` as the set of numbers that it allows.

    Inequalities in different variables stay as they are.
    """
    variables = _variables(expected)
    others = _variables(given)
    if variables and others and variables != others:
        return expected, given
    return _without_modulus(expected), _without_modulus(given)


def _variables(formula: Any) -> set[Any]:
    return set(getattr(formula, "free_symbols", ()))


def _without_modulus(formula: Any) -> Any:
    """Return an inequality of the modulus of a linear term as a set; others as they are."""
    from sympy import Abs, Dummy
    from sympy.core.relational import Equality, Relational

    if not isinstance(formula, Relational) or isinstance(formula, Equality):
        return formula
    if len(formula.free_symbols) != 1 or not isinstance(formula.lhs, Abs):
        return formula
    variable = next(iter(formula.free_symbols))
    term = formula.lhs.args[0]
    if not term.is_polynomial(variable) or term.as_poly(variable).degree() != 1:
        return formula
    if not formula.rhs.is_number:
        return formula
    real = Dummy(real=True)
    return formula.subs(variable, real).as_set()


def _as_union(given: Any) -> Any:
    """Return several inequalities, `x < -1` or `x > 1`, as the set that they allow."""
    from sympy import FiniteSet, Union
    from sympy.core.relational import Relational

    if not isinstance(given, FiniteSet) or not all(isinstance(r, Relational) for r in given.args):
        return given
    return Union(*(relation.as_set() for relation in given.args))


def _exact_side(answer: str) -> str:
    r"""Return the left side of `\sqrt{2} \approx 1.41`; the text itself if it is none."""
    sides = _APPROXIMATE.split(answer)
    if len(sides) != 2 or read_quantity(sides[0]) is not None:
        return answer
    return sides[0] if read_quantity(sides[1]) is not None else answer


def _is_false_equation(given: Any) -> bool:
    """Return whether a formula says that two different numbers are equal, as in `42 = 43`."""
    from sympy import Eq

    if not isinstance(given, Eq):
        return False
    numbers = _compare_numbers(given.lhs, given.rhs, "")
    return numbers is False


def _compare_numbers(expected: Any, given: Any, answer: str) -> bool | None:
    """Return whether two formulas without variables have one value; None if they cannot tell."""
    from sympy import Eq, Expr, Float

    if isinstance(given, Eq) and not isinstance(expected, Eq):
        given = given.rhs
    if isinstance(expected, Eq) and not isinstance(given, Eq) and _names_its_left_side(expected):
        expected = expected.rhs
    expected = _with_imaginary_unit(expected)
    given = _with_imaginary_unit(given)
    for side in (expected, given):
        if not isinstance(side, Expr) or not side.is_number or side.has(*_not_finite()):
            return None
    difference = _relative_difference(expected, given)
    if difference is None:
        return None
    is_decimal = expected.has(Float) or given.has(Float)
    if difference <= _EXACT:
        return is_decimal or _may_be_equal(expected, given)
    if not is_decimal or (given.is_Float and _significant_digits(answer) < _FEWEST_DIGITS):
        return False
    return bool(difference <= _ROUNDED)


def _relative_difference(expected: Any, given: Any) -> Any:
    """Return the difference of two finite numbers over the larger; None if it is not precise."""
    left = expected.evalf(_DIGITS)
    right = given.evalf(_DIGITS)
    sizes = [abs(left), abs(right)]
    if not all(size.is_Number for size in sizes):
        return None
    scale = max(sizes)
    if not scale.is_Float or scale._prec < _LEAST_BITS:
        return None
    if not _is_precise(left) or not _is_precise(right):
        return None
    return abs(left - right) / scale


def _may_be_equal(expected: Any, given: Any) -> bool:
    """Return whether two formulas without decimals are equal, or cannot be told apart.

    Large whole numbers, such as `2^{1000}` and `2^{1000} + 1`, differ behind the last digit.
    """
    left = expected.doit()
    right = given.doit()
    return bool(left == right) or not (left.is_Rational and right.is_Rational)


def _with_imaginary_unit(formula: Any) -> Any:
    """Return a formula whose only variable is called i as a complex number."""
    from sympy import I

    names = {symbol.name for symbol in getattr(formula, "free_symbols", ())}
    if names != {"i"}:
        return formula
    return formula.subs(dict.fromkeys(formula.free_symbols, I))


def _names_its_left_side(equation: Any) -> bool:
    """Return whether an equation gives the value of a variable or a function."""
    from sympy import Symbol
    from sympy.core.function import AppliedUndef

    return isinstance(equation.lhs, Symbol | AppliedUndef)


def _is_to_be_solved(equation: Any) -> bool:
    """Return whether an equation such as `x^2 - 1 = 0` has no side that is a value."""
    return bool(equation.rhs == 0) and not _names_its_left_side(equation)


def _not_finite() -> tuple[Any, ...]:
    from sympy import nan, oo, zoo

    return (oo, -oo, zoo, nan)


def _is_precise(value: Any) -> bool:
    """Return whether a value has its digits; a zero that was computed has none."""
    return all(
        part == 0 or part._prec >= _LEAST_BITS for part in value.as_real_imag() if part.is_Float
    )


def _significant_digits(text: str) -> int:
    return len(re.sub(r"[^0-9]", "", text).lstrip("0"))


def _is_surely_a_set(expected: Any) -> bool:
    """Return whether a reference is a set of numbers; `(1, 2)` may be a point, too."""
    from sympy import Interval, Union

    if isinstance(expected, Union):
        return True
    if not isinstance(expected, Interval):
        return False
    is_open = bool(expected.left_open and expected.right_open)
    return not is_open or not (expected.start.is_finite and expected.end.is_finite)
