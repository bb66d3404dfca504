r"""What trainers print: the console logs of TRL, verl and others.

    {'loss': 0.1, 'reward': 0.5, 'epoch': 0.1}                         TRL, ms-swift (transformers)
    (TaskRunner pid=1) step:12 - actor/pg_loss:0.1 - ...                verl
    rollout 3: {'rollout/raw_reward': 0.4, ...}                         slime
    Global step 12: {'policy_loss': 0.1, ...}                           OpenRLHF
    SUCCESS Step 12 | Time: 3.2s | Reward: 0.35 | Loss: 0.01            prime-rl
    ==== Step 3/100 ====  and below it  \u2022 Loss: 0.01                    NeMo-RL
    step=12 reward=0.5 loss=0.1                                         loops of one's own

Progress bars, warnings, tables of completions, colours and Ray's prefixes are skipped. A file of
metrics is the better source, since a console rounds and mixes: the messages say which setting of
the trainer writes one.

What transformers prints has no step. Its lines are numbered, and the number times `logging_steps`
is the step; a progress bar that ends at the last line says how many steps are between two lines.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.local_files import open_regular
from advsweep.logs.base import ImportedRun, ImportOptions, existing, unreadable, whole_step
from advsweep.logs.line_log import LineLog
from advsweep.logs.names import LoggedStep
from advsweep.printable import printable_line
from advsweep.text_files import encoding_of, other_form

# What writes a file of metrics instead.
FILES = (
    "TRL and ms-swift write trainer_state.json with each checkpoint (save_steps), verl a file with "
    "trainer.logger=[console,file]"
)

_ENDINGS = (".log", ".txt", ".out", ".err")

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_RAY = re.compile(r"^\s*\([\w.:-]+(?:\([^)]*\))? pid=\d+[^)]*\)\s?")

# A progress bar: steps that are done, and all of them.
_BAR = re.compile(r"\|\s*(\d{1,10})/(\d{1,10}) \[")

_NUMBER_TEXT = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf|Infinity|NaN)"
_WRAPPED = rf"(?:(?:np|numpy|torch)?\.?\w+\()?['\"]?(?P<value>{_NUMBER_TEXT})['\"]?\)?"

# A mapping as Python or JSON prints it, without others in it.
_MAPPING = re.compile(r"\{\s*(?=['\"])[^{}]{3,65536}\}")
_ENTRY = re.compile(
    rf"(?P<quote>['\"])(?P<name>[^'\"]{{1,200}})(?P=quote)\s*:\s*{_WRAPPED}(?=[,\s}}])"
)

# Words before a mapping or a list of values that say which step it is of.
_STEP_WORD = re.compile(
    r"\b(?:global[_ ]?step|train(?:ing)?[_ ]?step|step|iteration|iter|rollout|update)\b"
    r"\s*[:=#]?\s*\[?(?P<step>\d{1,10})(?![\d.]*[\w%])",
    re.IGNORECASE,
)

# verl: step:12 - name:value - name:value
_VERL = re.compile(r"\bstep:(?P<step>\d{1,10}) - (?P<rest>\S.*)")
_VERL_ENTRY = re.compile(rf"^(?P<name>[^\s:]+(?:/[^:]+)?):\s*{_WRAPPED}\s*$")

# name: value or name=value, with a unit.
_PAIR = re.compile(
    rf"(?P<name>[A-Za-z][\w./@%() -]{{0,60}}?)\s*[:=]\s*(?P<value>{_NUMBER_TEXT})"
    r"(?=\s*(?:%|[A-Za-z/\u03bc]{1,20})?\s*(?:[|,;)\]]|\s-\s|\s\S+[=:]|$|\())"
)

# NeMo-RL: a heading for each step, then a line for each value.
_HEADING = re.compile(r"^[=\-\s]*\bStep (?P<step>\d{1,10})/\d{1,10}\b[=\-\s]*$")
_BULLET = re.compile(
    rf"^\s*[\u2022*-]\s*(?P<name>[A-Za-z][^:]{{0,80}}?)\s*:\s*(?P<value>{_NUMBER_TEXT})(?![\d._])"
)

_STEP_KEYS = (
    "step",
    "global_step",
    "current_steps",
    "train/global_step",
    "training/global_step",
    "train/step",
    "rollout/step",
    "iteration",
)

# What the mappings of a trainer's log have, and those of a completion that it prints have not.
_USUAL = re.compile(
    r"(?:.*[/_])?(?:loss|reward|rewards|epoch|grad_norm|learning_rate|lr|kl|entropy|score|acc|"
    r"accuracy|raw_reward)(?:[/_].*)?",
    re.IGNORECASE,
)

# The summary of transformers at the end of a training.
_SUMMARY = "train_runtime"

# Box drawing, of tables of completions.
_BOX = ("\u2500", "\u257f")

# Characters of a line that are searched, since an expression may take long on long lines.
_LONGEST = 2**16

_SEEN_BYTES = 2**22
_SHOWN = 60


@dataclass(kw_only=True)
class Console(LineLog):
    """What a trainer printed: one run."""

    name: ClassVar[str] = "console"
    table: ClassVar[str] = "jsonl"

    logging_steps: int = option(
        0, ge=0, help="steps between two lines without a step; 0: as a progress bar says, or 1"
    )

    def _restart(self) -> None:
        super()._restart()
        self.unnumbered = 0
        """Lines of values that say no step."""
        self._bar = (0, 0)
        self._heading: int | None = None
        self._last: int | None = None

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        root = existing(source)
        files = [root]
        if root.is_dir():
            inside = (file for file in root.rglob("*") if file.name.endswith(_ENDINGS))
            files = sorted(file for file in inside if file.is_file())
        if not files:
            raise ConfigError(
                f"{root}: expected a file, or a folder with *{', *'.join(_ENDINGS)}, got none"
            )
        for file in files:
            place = file.name if file == root else file.relative_to(root).as_posix()
            yield self._run(file, place, options)

    def _run(self, file: Path, place: str, options: ImportOptions) -> ImportedRun:
        """Return the run of one file.

        Raises:
            ConfigError: no line has values.
        """
        given = options.settings_of(place).get("logging_steps")
        log = self.open(file)
        if isinstance(given, int) and not isinstance(given, bool) and given > 0:
            log = dataclasses.replace(self, logging_steps=given).open(file)
        log.on_read = options.on_read
        steps = list(log.steps())
        if not any(step.values for step in steps):
            raise ConfigError(f"{file}: {_what_it_is(file)}")
        notes = ["the values are those of a console, which rounds them"]
        if log.unnumbered:
            # Numbered by lines so far.
            every = log._steps_per_line()
            if log.logging_steps == 0 and every > 1:
                steps = [LoggedStep(step * every, values) for step, values in steps]
            notes.append(log._how_numbered(every))
        return ImportedRun(
            source=place,
            config={},
            steps=[options.names.rename_step(step) for step in steps],
            left_out=log.left_out,
            notes=notes,
        )

    def _steps_per_line(self) -> int:
        """Return the steps between two lines, as given, or by a progress bar that has ended."""
        if self.logging_steps:
            return self.logging_steps
        done, total = self._bar
        is_even = done == total and self.unnumbered and total % self.unnumbered == 0
        return total // self.unnumbered if is_even and total else 1

    def _how_numbered(self, every: int) -> str:
        if self.logging_steps:
            return f"the lines have no step: each is {every} steps after the last (logging_steps)"
        if every > 1 or (self._bar[1] and self._bar[1] == self.unnumbered):
            return (
                f"the lines have no step: each is {every} after the last, by the progress bar "
                f"of {self._bar[1]:,} steps"
            )
        return (
            "the lines have no step: they are numbered 1, 2, ...; --set logging_steps=N, of the "
            "trainer's arguments, gives the steps between two lines"
        )

    def _parse(self, line: str, *, ended: bool) -> LoggedStep | None:
        values: dict[str, float] = {}
        step: int | None = None
        if not ended:
            # A number at its end may be cut.
            self.left_out["last lines without their end"] += 1
            return None
        for part in _COLOURS.sub("", line[:_LONGEST]).split("\r"):
            text = _RAY.sub("", part).strip()
            if not text or _BOX[0] <= text[0] <= _BOX[1]:
                continue
            if bars := _BAR.findall(text):
                done, total = map(int, bars[-1])
                # The bar of a training, and not that of an evaluation within it.
                if total >= self._bar[1]:
                    self._bar = done, total
            found = self._find(text)
            if found is not None:
                step, more = found
                values |= more
        return None if step is None else LoggedStep(step, values)

    def _find(self, text: str) -> tuple[int, dict[str, float]] | None:
        """Return the step and the values of a line; None for a line without values."""
        if match := _HEADING.fullmatch(text):
            self._heading = whole_step(match["step"])
            return None
        if match := _VERL.search(text):
            return self._named(match["step"], _verl_values(match["rest"]))
        if (mapping := _MAPPING.search(text)) is not None:
            return self._of_mapping(text[: mapping.start()], mapping[0])
        if self._heading is not None and (match := _BULLET.match(text)):
            name = _plain(match["name"])
            return self._heading, self._numbers([(name, match["value"])])
        if (match := _STEP_WORD.search(text)) is not None:
            pairs = [(_plain(p["name"]), p["value"]) for p in _PAIR.finditer(text, match.end())]
            return self._named(match["step"], pairs) if pairs else None
        return None

    def _named(
        self, step: str, pairs: list[tuple[str, str]]
    ) -> tuple[int, dict[str, float]] | None:
        number = whole_step(step)
        if number is None:
            self.left_out["lines whose step is too large"] += 1
            return None
        self._last = number
        return number, self._numbers(pairs)

    def _of_mapping(self, before: str, mapping: str) -> tuple[int, dict[str, float]] | None:
        """Return the step and the values of a mapping, with the text before it."""
        pairs = {match["name"]: match["value"] for match in _ENTRY.finditer(mapping)}
        if not pairs or not any(_USUAL.fullmatch(name) for name in pairs):
            return None
        if _SUMMARY in pairs:
            return None
        named = next((key for key in _STEP_KEYS if key in pairs), None)
        words = list(_STEP_WORD.finditer(before))
        if named is not None:
            return self._named(pairs.pop(named), list(pairs.items()))
        if words:
            return self._named(words[-1]["step"], list(pairs.items()))
        is_evaluation = any(name.startswith("eval_") for name in pairs)
        if is_evaluation:
            # The line of the training has it, too.
            pairs.pop("epoch", None)
        if not is_evaluation or self._last is None:
            self.unnumbered += 1
            self._last = self.unnumbered * (self.logging_steps or 1)
        return self._last, self._numbers(pairs.items())


def _verl_values(text: str) -> list[tuple[str, str]]:
    pairs = []
    for part in text.split(" - "):
        if match := _VERL_ENTRY.match(part.strip()):
            pairs.append((match["name"], match["value"]))
    return pairs


def _plain(name: str) -> str:
    """Return the name of a value that is printed for people.

    >>> _plain("Avg Reward"), _plain(" | Grad. Norm")
    ('avg_reward', 'grad_norm')
    """
    return re.sub(r"[^\w/@]+", "_", name.lower()).strip("_")


def is_console(path: Path) -> bool:
    """Return whether a file is what a trainer printed: some lines of it have values."""
    if not path.is_file():
        return False
    lines = [line for line in _first_lines(path) if line.strip()]
    # JSON is no console, and is read by its own formats.
    if not lines or re.match(r"\s*(?:\{\s*(?:\"|$)|\[\s*(?:[{\[]|$))", lines[0]):
        return False
    log = Console()
    return any(log._parse(line, ended=True) is not None for line in lines)


def _first_lines(path: Path) -> list[str]:
    """Return the lines at the start of a text file; none of another file."""
    try:
        with open_regular(path.resolve()) as file:
            start = file.read(_SEEN_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error
    if other_form(start):
        return []
    return start.decode(encoding_of(start), "replace").split("\n")


def _what_it_is(path: Path) -> str:
    """Return what a text looks like in which no line has values, and what to do."""
    lines = [line.strip() for line in _first_lines(path) if line.strip()]
    shown = "; ".join(repr(printable_line(line)[:_SHOWN]) for line in lines[:2]) or "an empty file"
    return (
        f"expected lines of values, as TRL, verl, OpenRLHF, slime, prime-rl and NeMo-RL print "
        f"them, got: {shown}; {FILES}"
    )
