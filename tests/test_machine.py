"""What is read of this machine."""

from __future__ import annotations

import platform

import pytest

from advsweep import machine

X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7763: a name
stepping\t: 1

processor\t: 1
vendor_id\t: Another
stepping\t: 2
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""


@pytest.mark.parametrize(
    ("cpuinfo", "name", "facts"),
    [
        (
            X86,
            "AMD EPYC 7763: a name",
            {"vendor": "AuthenticAMD", "family": "25", "model": "1", "stepping": "1"},
        ),
        (
            ARM,
            platform.processor(),
            {"vendor": "0x41", "family": "8", "model": "0xd0c", "stepping": "1"},
        ),
        ("", platform.processor(), {}),
        (None, platform.processor(), {}),  # a system without /proc
    ],
)
def test_a_processor_is_that_of_the_first_core(cpuinfo, name, facts, tmp_path, monkeypatch):
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo, encoding="utf-8")
    monkeypatch.setattr(machine, "_CPUINFO", path)
    assert machine.processor_name() == name
    assert machine.processor_facts() == facts
