"""Which block of a completion is the program."""

from __future__ import annotations

import pytest

from advsweep.tasks.verifiers.fences import CodeBlock, fenced_blocks, find_program

F = "def f(x):\n    return x"


@pytest.mark.parametrize(
    "completion",
    [
        F,
        f"```python\n{F}\n```",
        f"```py\n{F}\n```",
        f"```python3\n{F}\n```",
        f"```Python\n{F}\n```",
        f"``` python\n{F}\n```",
        f"```\n{F}\n```",
        f"````python\n{F}\n````",
        f"~~~python\n{F}\n~~~",
        f"~~~\n{F}\n~~~",
        f"```python title=main.py\n{F}\n```",
        f'```python {{linenos="true"}}\n{F}\n```',
        f"```{{.python .numberLines}}\n{F}\n```",
        f"```{{python}}\n{F}\n```",
        f"```python\n{F}\n```".replace("\n", "\r\n"),
        f"```python  \n{F}\n```  ",
        f"```python\n{F}",
        f"```python\n{F}```",
        f"```python\n{F}\n```\nRun:\n```bash\npython main.py\n```",
        f"```python\n{F}\n```\nIt prints:\n```\n3\n```",
        f"```python\n{F}\n```\nUse it:\n```python\nprint(f(3))\n```",
        f"```python\n{F}\n```\n```python\nassert f(3) == 3\nx = f(2)\n```",
        f"```python\ndef f(x): return 0\n```\nBetter:\n```python\n{F}\n```",
        f"<think>```python\ndef f(x): return 0\n```</think>\n```python\n{F}\n```",
        f"<think>\n```python\ndef f(x): return 0\n</think>\n```python\n{F}\n```",
        f"<think>def f(x): return 0</think>\n\n{F}",
        f"```markdown\n# Answer\n```python\n{F}\n```\n```",
        f"````markdown\n# Answer\n```python\n{F}\n```\n````",
        "1. Write:\n\n   ```python\n   def f(x):\n       return x\n   ```\n2. Done.",
        "- ```python\n  def f(x):\n      return x\n  ```",
        f"Here: ```python\n{F}\n```",
        f"```python\n{F}\n```python\nprint(f(1))\n```",
        f"```python\n{F}\n```\n```python\ndef f(x):\n    return (x\n",
        f"Call it with ```f(1)``` as here.\n```python\n{F}\n```",
        f"```text\ndef f(x): return 5\n```\n```python\n{F}\n```\n```text\nf = 5\n```",
    ],
)
def test_the_program_is_found(completion: str) -> None:
    assert find_program(completion, ["f"]) == F


def test_a_fence_in_a_docstring_is_content() -> None:
    program = (
        'def f(x):\n    """Return x.\n\n    ```python\n    f(1)\n    ```\n    """\n    return x'
    )
    assert find_program(f"```python\n{program}\n```\n", ["f"]) == program


def test_earlier_blocks_that_are_needed_come_first() -> None:
    helper, unused = "import math\n\ndef g(x):\n    return math.sqrt(x)", "def h(x):\n    return 1"
    answer = "def f(x):\n    return g(x)"
    text = "\n".join(f"```python\n{block}\n```" for block in (helper, unused, answer))
    assert find_program(text, ["f"]) == f"{helper}\n\n{answer}"


def test_an_earlier_attempt_is_not_added() -> None:
    attempt, answer = (
        "def f(x):\n    return 0\ndef g(x):\n    return 1",
        "def f(x):\n    return g(x)",
    )
    assert find_program(f"```python\n{attempt}\n```\n```python\n{answer}\n```", ["f"]) == answer


SCRIPT = "def solve(x):\n    return x\n\nprint(solve(input()))"


@pytest.mark.parametrize(
    "completion",
    [
        SCRIPT,
        f"```python\n{SCRIPT}\n```",
        f"```python\n{SCRIPT}\n```\nFor example:\n```python\nprint(solve('3'))\n```",
        f"```python\n{SCRIPT}\n```\nThe core:\n```python\ndef solve(x):\n    return x\n```",
        f"```python\n{SCRIPT}\n```\nInput:\n```\n3 4\n```\nOutput:\n```\n7\n```",
        f"```python\nprint(0)\n```\nor\n```python\n{SCRIPT}\n```",
    ],
)
def test_the_script_is_found(completion: str) -> None:
    assert find_program(completion, []) == SCRIPT


def test_a_script_in_two_blocks_is_joined() -> None:
    first, last = "def solve(x):\n    return x", "print(solve(input()))"
    text = f"```python\n{first}\n```\nand\n```python\n{last}\n```"
    assert find_program(text, []) == f"{first}\n\n{last}"


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("", []),
        ("``x``", []),
        ("a ~~~ b", []),
        ("```", [CodeBlock("", "")]),
        ("```c++\nx\n```\n```\ny", [CodeBlock("c++", "x"), CodeBlock("", "y")]),
    ],
)
def test_blocks(text: str, blocks: list[CodeBlock]) -> None:
    assert fenced_blocks(text) == blocks
