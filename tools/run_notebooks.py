"""Run the notebooks of `examples/` and write their outputs into them.

    python tools/run_notebooks.py examples/quickstart.ipynb

Outputs hold no paths, times, warnings or notes on the machine, so that they change only when a
result does. The site shows the notebooks as pages (`site_pages`).
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat
from page_blocks import NOTES

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STYLE = re.compile(r"<style.*?</style>\n?", re.DOTALL)


def run(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Execute a notebook in a folder and return it with its new outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(folder)}}
    )
    done: nbformat.NotebookNode = client.execute()
    return clean(done)


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove from a notebook what differs between two executions with equal results."""
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [_clean_output(each) for each in cell.outputs if _is_shown(each)]
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    return notebook


def _is_shown(output: nbformat.NotebookNode) -> bool:
    data = output.get("data", {})
    texts = (output.get("text", ""), *map(str, data.values()))
    return output.get("name") != "stderr" and any(text.strip() for text in texts)


def _clean_output(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    if "text" in output:
        text = _CONTROL.sub("", output.text.replace("\r\n", "\n"))
        output.text = NOTES.sub("...\n", text)
    if "text/html" in output.get("data", {}):
        output.data["text/html"] = _STYLE.sub("", output.data["text/html"])
    if "execution_count" in output:
        output.execution_count = None
    return output


def main() -> int:
    """Write the outputs of the notebooks named on the command line; returns the exit code."""
    for name in sys.argv[1:]:
        path = Path(name)
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(run(nbformat.read(path, as_version=4), Path(folder)), path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
