// Typesets the equations, whose LaTeX tools/site_math.py has put beside them.
document.querySelectorAll(".math").forEach((equation) => {
  katex.render("\\displaystyle " + equation.dataset.tex, equation, { strict: false });
});
