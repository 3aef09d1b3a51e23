"""Tests what MaxText is told on each host, and what is made of its converter's directory; MaxText itself runs in end_to_end."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import CheckpointError
from kinetic_orchestration.host.process import topology
from kinetic_orchestration.program.context import HostContext
from kinetic_orchestration.program.trainers import maxtext
from kinetic_orchestration.program.trainers.maxtext_export import differences, here, repaired, tensors_in

ALONE = HostContext(job_id="job-1", checkpoint_dir="gs://b/k/checkpoints/1")
SECOND = HostContext(job_id="job-1", host_index=1, host_count=2, checkpoint_dir="/c")


def test_each_attempt_on_each_host_continues_the_same_run() -> None:
    assert maxtext.arguments(["steps=3"], ALONE, {"JAX_PLATFORMS": "cpu", "KINETIC_METRICS_FILE": "/s/m"}) == [
        "run_name=run", "base_output_directory=gs://b/k/checkpoints/1", "hardware=cpu",
        "skip_jax_distributed_system=true", "metrics_file=/s/m", "steps=3",
    ]  # fmt: skip
    assert maxtext.arguments(["my.yml", "run_name=mine", "hardware=tpu"], SECOND, {"JAX_PLATFORMS": "cpu"}) == [
        "my.yml", "base_output_directory=/c", "run_name=mine", "hardware=tpu",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "hardware"),
    [
        ({**topology.emulated(4)}, "cpu"),
        (topology.on_accelerator("tpu", {}), "tpu"),
        (topology.on_accelerator("gpu", {}), "gpu"),
        ({"KINETIC_EXPECT": "gpu 4711"}, "gpu"),
        ({"JAX_PLATFORMS": "cuda,cpu"}, "gpu"),
        ({"JAX_PLATFORMS": "tpu,cpu"}, "tpu"),
        ({}, "cpu"),
    ],
)
def test_the_hardware_is_what_the_host_was_given(environ: dict[str, str], hardware: str) -> None:
    assert maxtext.hardware_of(environ) == hardware


def test_slices_share_the_batch_unless_the_words_divide_the_work_between_them() -> None:
    """Four hosts in two slices, with the variables that their agents give them."""
    host = HostContext(host_index=3, host_count=4, checkpoint_dir="/c")
    addresses = [f"10.0.0.{n}" for n in range(4)]
    environ = topology.environment(3, 4, addresses, topology.PORTS, slices=2) | topology.on_accelerator("tpu", {})
    assert (environ["MEGASCALE_NUM_SLICES"], environ["MEGASCALE_SLICE_ID"]) == ("2", "1")
    assert "dcn_data_parallelism=2" in maxtext.arguments(["steps=3"], host, environ)
    words = maxtext.arguments(["dcn_fsdp_parallelism=2"], host, environ)
    assert [word for word in words if word.startswith("dcn_")] == ["dcn_fsdp_parallelism=2"]
    emulated = {**environ, **topology.emulated(4)}
    del emulated[topology.EXPECT]
    assert {"dcn_data_parallelism=2", "hardware=cpu"} <= set(maxtext.arguments([], host, emulated))
    one = topology.environment(0, 2, addresses[:2], topology.PORTS) | topology.on_accelerator("tpu", {})
    assert not [word for word in maxtext.arguments([], SECOND, one) if word.startswith(("dcn_", "skip_"))]


def test_a_configuration_is_repaired_by_the_tensors_and_the_tokenizer() -> None:
    wrote: dict[str, Any] = {
        "num_hidden_layers": 2, "layer_types": ["full_attention"] * 28, "max_window_layers": 28, "dtype": "bfloat16",
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "hidden_size": 64,
    }  # fmt: skip
    tensors = {"a": ("F32", (2, 3)), "b": ("F32", (4,))}
    special = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": None}
    assert repaired(wrote, tensors, special) == {
        "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "max_window_layers": 2, "dtype": "float32",
        "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": None, "hidden_size": 64,
    }  # fmt: skip
    assert repaired({"text_config": wrote}, tensors, special)["text_config"]["layer_types"] == ["full_attention"] * 2
    assert repaired({"dtype": "bfloat16"}, {**tensors, "c": ("BF16", ())}, {})["dtype"] == "bfloat16", "of both kinds"


def test_what_a_model_lacks_is_named() -> None:
    implied = {"a.weight": [2, 3], "b.weight": [4], "lm_head.weight": [9, 2]}
    tensors = {"a.weight": ("F32", (3, 2)), "c.weight": ("F32", (1,))}
    assert differences(tensors, implied, tied=True) == [
        "b.weight is missing", "c.weight is not expected", "a.weight has the shape [3, 2] instead of [2, 3]",
    ]  # fmt: skip
    assert "lm_head.weight is missing" in differences(tensors, implied, tied=False)
    whole = {name: ("F32", tuple(shape)) for name, shape in implied.items()}
    assert not differences(whole, implied, tied=False) and not differences(whole, implied, tied=True)


def safetensors(header: object, rest: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + rest


def test_tensors_are_read_by_the_headers_of_their_files(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "a": {"dtype": "BF16", "shape": [2, 1], "data_offsets": [0, 4]}}
    (tmp_path / "model-1.safetensors").write_bytes(safetensors(header, b"1234"))
    (tmp_path / "model-2.safetensors").write_bytes(
        safetensors({"b": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}, b"1234")
    )
    assert tensors_in(tmp_path) == {"a": ("BF16", (2, 1)), "b": ("F32", ())}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12"), "is cut off: it has"),
        (b"short", "is no safetensors file"),
        (struct.pack("<Q", 1 << 60), "a header of"),
        (safetensors([1], b""), "is no safetensors file"),
        (safetensors({"a": {"dtype": "F32", "shape": 3, "data_offsets": [0]}}, b""), "is no safetensors file"),
    ],
)
def test_a_file_that_holds_no_tensors_is_refused_by_its_name(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors.*{message}"):
        tensors_in(tmp_path)


def test_a_tokenizer_in_a_bucket_is_fetched_whole_and_one_of_a_folder_is_read_there(tmp_path: Path) -> None:
    import fsspec

    files = {"tokenizer.json": b"{}", "more/chat_template.jinja": b"{{ text }}"}
    for name, content in files.items():
        fsspec.filesystem("memory").pipe(f"/tokens/tokenizer/{name}", content)
    try:
        found = Path(here("memory://tokens/tokenizer/", tmp_path))
    finally:
        fsspec.filesystem("memory").rm("/tokens", recursive=True)
    assert {str(each.relative_to(found)): each.read_bytes() for each in found.rglob("*") if each.is_file()} == files
    assert here("/a/folder", tmp_path) == "/a/folder"
