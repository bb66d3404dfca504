"""A verifier: lists in any order, such as the roots of a polynomial."""

from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import option
from advsweep.tasks.verifiers.base import QuickVerifier, verdict
from advsweep.tasks.verifiers.boxes import last_boxed


@dataclass(kw_only=True)
class Unordered(QuickVerifier):
    r"""Correct if the last `\boxed{...}` has the items of the reference answer, in any order.

    It takes time linear in the completion, so it needs no process of its own (`QuickVerifier`);
    a verifier that may hang is a `Verifier`.
    """

    name: ClassVar[str] = "unordered"

    separator: str = option(",", help="what separates the items")

    def reads(self, reference):
        return bool(self._items(str(reference["answer"])))

    def judge(self, reference, completion):
        boxed = last_boxed(completion)
        if boxed is None:
            return verdict(False, None)
        found = self._items(boxed)
        right = found == self._items(str(reference["answer"]))
        return verdict(right, self.separator.join(found))

    def solution(self, reference):
        return f"\\boxed{{{reference['answer']}}}"

    def _items(self, text):
        items = (item.strip().casefold() for item in text.split(self.separator))
        return sorted(item for item in items if item)
