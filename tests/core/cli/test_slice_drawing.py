"""The drawings of slices. They are golden: a change of one of them is intended."""

from __future__ import annotations

import pytest

from kinetic_orchestration.cli.slice_drawing import draw
from kinetic_orchestration.plan.hardware.accelerators import Slice, catalogue, on_hosts, parse

pytestmark = pytest.mark.fast

V5E_8 = """\
v5e-8: 8 chips (2x4), 1 host × 8 chips, Cloud TPU v5litepod-8

  ╭───────────── host 0 ─────────────╮
  │  [0]──────[1]──────[2]──────[3]  │
  │   │        │        │        │   │
  │  [4]──────[5]──────[6]──────[7]  │
  ╰──────────────────────────────────╯

16 GiB and 197 TFLOP/s (bf16) per chip, 128 GiB and 1.58 PFLOP/s together.
"""

V5E_16 = """\
v5e-16: 16 chips (4x4), 4 hosts × 4 chips, Cloud TPU v5litepod-16

  ╭───── host 0 ─────╮   ╭───── host 1 ─────╮
  │  [ 0]──────[ 1]──┼───┼──[ 2]──────[ 3]  │
  │    │         │   │   │    │         │   │
  │  [ 4]──────[ 5]──┼───┼──[ 6]──────[ 7]  │
  ╰────┼─────────┼───╯   ╰────┼─────────┼───╯
       │         │            │         │
  ╭────┼ host 2 ─┼───╮   ╭────┼ host 3 ─┼───╮
  │  [ 8]──────[ 9]──┼───┼──[10]──────[11]  │
  │    │         │   │   │    │         │   │
  │  [12]──────[13]──┼───┼──[14]──────[15]  │
  ╰──────────────────╯   ╰──────────────────╯

16 GiB and 197 TFLOP/s (bf16) per chip, 256 GiB and 3.15 PFLOP/s together.
"""

V5P_16 = """\
v5p-16: 16 chips (2x2x4), 4 hosts × 4 chips, Cloud TPU v5p-32

        layer 0                  layer 1                  layer 2                  layer 3
  ╭───── host 0 ─────╮     ╭───── host 1 ─────╮     ╭───── host 2 ─────╮     ╭───── host 3 ─────╮
  │  [ 0]──────[ 1]  │     │  [ 4]──────[ 5]  │     │  [ 8]──────[ 9]  │     │  [12]──────[13]  │
  │    │         │   │ ═══ │    │         │   │ ═══ │    │         │   │ ═══ │    │         │   │
  │  [ 2]──────[ 3]  │     │  [ 6]──────[ 7]  │     │  [10]──────[11]  │     │  [14]──────[15]  │
  ╰──────────────────╯     ╰──────────────────╯     ╰──────────────────╯     ╰──────────────────╯

═ links every chip to the one at its place in the next layer.
95 GiB and 459 TFLOP/s (bf16) per chip, 1520 GiB and 7.34 PFLOP/s together.
"""

V5P_3904 = """\
v5p-3904: 3904 chips (4x4x244), 976 hosts × 4 chips, Cloud TPU v5p-7808

    layer 0          layer 1          layer 2          layer 3         layer 243
  [  0]──[  1]     [  4]──[  5]     [  8]──[  9]     [ 12]──[ 13]     [972]──[973]
    │      │   ═══   │      │   ═══   │      │   ═══   │      │  ═ ⋯ ═  │      │
  [  2]──[  3]     [  6]──[  7]     [ 10]──[ 11]     [ 14]──[ 15]     [974]──[975]

[n] is a host with 4 chips (2x2), linked to its neighbours.
═ links every chip to the one at its place in the next layer.
Links wrap around in every direction: a torus.
95 GiB and 459 TFLOP/s (bf16) per chip, 362 TiB and 1.79 EFLOP/s together.
"""

A100X4 = """\
a100x4: 4 GPUs, 1 host

  ╭────────── host 0 ──────────╮
  │  [0]    [1]    [2]    [3]  │
  │   │      │      │      │   │
  │   ╘══════╧══════╧══════╛   │
  ╰────────────────────────────╯

═ NVLink
40 GiB and 312 TFLOP/s (bf16) per GPU, 160 GiB and 1.25 PFLOP/s together.
"""

CPU = """\
cpu: 1 device, 1 host

  ╭── host 0 ──╮
  │    [0]     │
  ╰────────────╯
"""


@pytest.mark.parametrize(
    ("name", "drawing"),
    [
        ("v5e-8", V5E_8),
        ("v5e-16", V5E_16),
        ("v5p-16", V5P_16),
        ("v5p-3904", V5P_3904),
        ("a100x4", A100X4),
        ("cpu", CPU),
    ],
)
def test_a_slice_is_drawn_as_people_know_it(name: str, drawing: str) -> None:
    assert draw(parse(name)) == drawing


@pytest.mark.parametrize("found", (*catalogue(), parse("cpu:8"), parse("cpu:1000000")), ids=lambda found: found.name)
def test_every_drawing_fits_a_screen(found: Slice) -> None:
    lines = draw(found).splitlines()
    assert lines[0] == str(found)
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 60
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("found", [s for s in catalogue() if s.chips <= 64], ids=lambda found: found.name)
def test_a_small_slice_shows_every_chip_and_every_host(found: Slice) -> None:
    text = draw(found).replace("[ ", "[")
    assert [chip for chip in range(found.chips) if f"[{chip}]" not in text] == []
    assert [host for host in range(found.hosts) if f" host {host} " not in text] == []


def test_a_drawing_says_where_links_wrap_around_and_what_a_framework_sees() -> None:
    assert "Links wrap around along the side of 16." in draw(parse("v5e-128"))
    assert "a torus" in draw(parse("v4-64"))
    assert "wrap" not in draw(parse("v5e-64"))
    assert "A framework sees 2 devices for each chip: 8 in all." in draw(parse("v3-4"))


def test_of_several_hosts_of_gpus_the_first_is_drawn() -> None:
    two, four = (draw(on_hosts(parse("h100x8"), hosts)) for hosts in (2, 4))
    assert two.startswith("h100x8: 16 GPUs, 2 hosts × 8 GPUs\n")
    assert two.splitlines()[2:7] == draw(parse("h100x8")).splitlines()[2:7]
    assert "The other host is like it, joined over the network." in two
    assert "The other 3 hosts are like it, joined over the network." in four
    assert "1280 GiB" in two or "1.25 TiB" in two
    assert "NVLink" not in draw(on_hosts(parse("a100"), 2))
