"""The notebooks of `examples/`: they run, and what is stored in them is clean."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import nbformat
import pytest
import run_notebooks
import site_pages

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
SHORTER = {
    "STEPS = 40": "STEPS = 2",
    '"psr", "power_alpha"], seed=[0, 1, 2]': '"psr"], seed=[0, 1]',
}


def kinds(notebook: nbformat.NotebookNode) -> list[list[set[str]]]:
    """Return for each code cell the kinds of data of each output."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[{*each.get("data", {"text": ""})} for each in cell.outputs] for cell in code]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_notebook_runs_and_shows_what_is_stored(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    stored = nbformat.read(path, as_version=4)
    notebook = copy.deepcopy(stored)
    for cell in notebook.cells:
        for text, shorter in SHORTER.items():
            cell.source = cell.source.replace(text, shorter)
    ran = run_notebooks.run(notebook, tmp_path)
    assert kinds(ran) == kinds(stored)
    assert any("image/png" in data for cell in kinds(ran) for data in cell)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_stored_outputs_hold_no_paths_times_or_warnings(path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    assert run_notebooks.clean(copy.deepcopy(stored)) == stored
    for cell in stored.cells:
        for output in cell.get("outputs", ()):
            data = {k: v for k, v in output.get("data", {}).items() if k != "image/png"}
            text = str(output.get("text", "")) + "".join(data.values())
            assert not re.search(r"/(home|root|tmp|work|Users)/|[Ww]arning|\x1b|Traceback", text)
            assert not re.search(r"\b\d+ (s|min|h)\b", text), text
    assert any(cell.get("outputs") for cell in stored.cells)


def test_warnings_styles_and_notes_on_the_machine_are_removed() -> None:
    output = nbformat.v4.new_output
    cell = nbformat.v4.new_code_cell(
        "x",
        execution_count=3,
        metadata={"execution": {"iopub.status.busy": "2026-01-01T00:00:00Z"}},
        outputs=[
            output("stream", name="stderr", text="a warning\n"),
            output("stream", text="\x1b[?25ha table\r\nmean ± half the interval\nmade on AMD\n"),
            output("display_data", {"text/html": "\n", "text/plain": ""}),
            output("execute_result", {"text/html": "<style>td {}</style>\n<p>"}, execution_count=3),
        ],
    )
    kernel = {"name": "python3", "display_name": "Python 3"}
    notebook = nbformat.v4.new_notebook(
        cells=[cell],
        metadata={"kernelspec": kernel, "language_info": {"name": "python", "version": "3"}},
    )
    [done] = run_notebooks.clean(notebook).cells
    assert (done.execution_count, done.metadata) == (None, {})
    assert done.outputs[-1].execution_count is None
    assert [each.get("text") or each.data for each in done.outputs] == [
        "a table\n...\n",
        {"text/html": "<p>"},
    ]
    assert "language_info" not in notebook.metadata


def test_cells_become_blocks_with_what_they_show(tmp_path: Path) -> None:
    output = nbformat.v4.new_output
    image = {"image/png": "aVZCT1I=", "text/plain": "<Figure size 640x480>"}
    cells = [
        nbformat.v4.new_raw_cell("raw"),
        nbformat.v4.new_code_cell(" "),
        nbformat.v4.new_code_cell("draw()", outputs=[output("display_data", image)]),
        nbformat.v4.new_code_cell("print(1)", outputs=[output("stream", text="1\n")]),
        nbformat.v4.new_code_cell("2", outputs=[output("execute_result", {"text/plain": "2"})]),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "n.ipynb")
    assert site_pages.notebook_page(tmp_path / "n.ipynb", tmp_path / "n.md", str) == (
        "```python\ndraw()\n```\n\n![Output of the cell above](n_2.png)\n\n"
        "```python\nprint(1)\n```\n\n```text\n1\n```\n\n"
        "```python\n2\n```\n\n```text\n2\n```\n"
    )
