"""Converts a checkpoint of MaxText to a directory in Hugging Face's layout, which transformers and vLLM load.

    python -m kinetic_orchestration.program.trainers.maxtext_export CHECKPOINT TOKENIZER OUTPUT key=value …

MaxText's own converter makes the directory. Its `config.json` says of an overridden model what is true of the named
one, so it is repaired, and compared with the tensors that are there. Nothing is at OUTPUT until all of it is right. A
relative OUTPUT is in the job's output folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kinetic_orchestration.errors import CheckpointError, UsageError
from kinetic_orchestration.host.process.topology import EXPECT, JOIN
from kinetic_orchestration.program.context import current
from kinetic_orchestration.protocol.system import copies

CONVERTER = "maxtext.checkpoint_conversion.to_huggingface"
LARGEST_HEADER = 100 << 20  # bytes of a safetensors file's header, as its own library allows
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]  # by name: its type and its shape


def newest(checkpoint: str) -> str:
    """Return the `items` of a checkpoint: of a run's folder those of its last step, else of the step that is named.

    Raises:
        CheckpointError: There is no finished one.
    """
    from etils import epath
    from orbax.checkpoint import utils

    here = epath.Path(checkpoint)
    if (here / "items").exists():
        return str(here / "items")
    if here.name == "items" and here.exists():
        return str(here)
    folder = here if here.name == "checkpoints" else here / "checkpoints"
    steps = [step for step in folder.iterdir() if step.name.isdecimal()] if folder.exists() else []
    finished = [  # in a bucket a step has its name before it is whole
        int(step.name)
        for step in steps
        if (step / "items").exists()
        and (step / "_CHECKPOINT_METADATA").exists()
        and utils.is_checkpoint_finalized(step)
    ]
    if not finished:
        raise CheckpointError(
            f"{checkpoint} has no finished checkpoint of MaxText: name the run's folder, which contains "
            "checkpoints/STEP/items, or one of these steps"
        )
    return str(folder / str(max(finished)) / "items")


def repaired(config: Mapping[str, Any], tensors: Tensors, special: Mapping[str, int | None]) -> dict[str, Any]:
    """Return a model's configuration as its tensors and its tokenizer have it.

    Args:
        config: What MaxText's converter wrote.
        tensors: The tensors of the model.
        special: Ids of the tokenizer by `"bos_token_id"`, `"eos_token_id"` and `"pad_token_id"`.
    """
    found = dict(config)
    if isinstance(config.get("text_config"), Mapping):
        found["text_config"] = repaired(config["text_config"], tensors, special)
    layers = config.get("num_hidden_layers")
    if isinstance(layers, int):
        if isinstance(config.get("layer_types"), list):
            found["layer_types"] = config["layer_types"][:layers]
        if isinstance(config.get("max_window_layers"), int):
            found["max_window_layers"] = min(config["max_window_layers"], layers)
    found.update({name: value for name, value in special.items() if value is not None})
    dtypes = {dtype for dtype, _ in tensors.values()}
    if len(dtypes) == 1 and (dtype := DTYPES.get(dtypes.pop())):
        found.pop("torch_dtype", None)
        found["dtype"] = dtype
    return found


def differences(tensors: Tensors, implied: Mapping[str, Sequence[int]], *, tied: bool) -> list[str]:
    """Return in words how tensors differ from those that a configuration implies; none if they are as they should be.

    tied: The head is the embedding, and has no tensor of its own.
    """
    wanted = {name: tuple(shape) for name, shape in implied.items() if not (tied and name == "lm_head.weight")}
    told = [f"{name} is missing" for name in sorted(wanted.keys() - tensors.keys())]
    told += [f"{name} is not expected" for name in sorted(tensors.keys() - implied.keys())]
    for name in sorted(wanted.keys() & tensors.keys()):
        if tensors[name][1] != wanted[name]:
            told.append(f"{name} has the shape {list(tensors[name][1])} instead of {list(wanted[name])}")
    return told


def tensors_in(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the tensors of all safetensors files in a folder, by their headers.

    Raises:
        CheckpointError: One of the files is cut off, or none of the format.
    """
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                (size,) = struct.unpack("<Q", file.read(8))
                if size > LARGEST_HEADER:
                    raise ValueError(f"a header of {size} bytes")
                header = json.loads(file.read(size))
            header.pop("__metadata__", None)
            ends = [int(tensor["data_offsets"][1]) for tensor in header.values()]
            found |= {name: (str(tensor["dtype"]), tuple(map(int, tensor["shape"]))) for name, tensor in header.items()}
        except (ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
            raise CheckpointError(f"{path} is no safetensors file: {error}") from error
        if path.stat().st_size != 8 + size + max(ends, default=0):
            raise CheckpointError(f"{path} is cut off: it has {path.stat().st_size} bytes")
    return found


def export(checkpoint: str, tokenizer: str, output: str, words: Sequence[str]) -> dict[str, Any]:
    """Convert a checkpoint, and return the configuration of the model.

    Args:
        checkpoint: Folder of a run, of which the last step is taken, or of a step.
        tokenizer: Folder or address of the tokenizer, which goes into the directory.
        output: Folder to make, local or `gs://`; one that exists is refused.
        words: MaxText's own of the training that say what the model is: `model_name=` and the overrides.

    Raises:
        UsageError: The model has no name, the tokenizer is larger than its vocabulary, or the output exists.
        CheckpointError: There is no such checkpoint, it cannot be converted, or tensors are missing.
    """
    from etils import epath

    said = dict(word.split("=", 1) for word in words if "=" in word)
    if not said.get("model_name"):
        raise UsageError("only a model that MaxText knows by a name can be converted: add model_name=, as in training")
    if epath.Path(output).exists():
        raise UsageError(f"{output} exists: name a folder that does not, since what is served must never be half of it")
    with tempfile.TemporaryDirectory(prefix="kinetic-maxtext-") as scratch:
        tokens, made = here(tokenizer, Path(scratch)), Path(scratch, "model")
        special, size = _tokens_of(tokens)
        if size > int(said.get("vocab_size", size)):
            raise UsageError(
                f"the tokenizer in {tokenizer} has {size} entries and the model {said['vocab_size']}: "
                f"train it with vocab_size={size} or more"
            )
        _convert(newest(checkpoint), tokens, made, words)
        tensors = tensors_in(made)
        path = made / "config.json"
        config = repaired(json.loads(path.read_text(encoding="utf-8")), tensors, special)
        shapes = _shapes()[said["model_name"]](config)
        told = differences(tensors, shapes, tied=bool(config.get("tie_word_embeddings")))
        if told:
            more = f", and {len(told) - 8} more" if len(told) > 8 else ""
            raise CheckpointError(
                f"the converted {said['model_name']} is not whole: {'; '.join(told[:8])}{more}. Give the same words "
                "as in training, scan_layers= among them"
            )
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        _publish(made, output)
    return config


def here(address: str, scratch: Path) -> str:
    """Return a folder of this host with what is at an address: a folder as it is, a bucket's copied into `scratch`."""
    if "://" not in address:
        return address
    import fsspec

    files, path = fsspec.url_to_fs(address)  # by gcsfs, if it is in gs://
    found = str(scratch / "tokenizer")
    files.get(f"{path.rstrip('/')}/", f"{found}/", recursive=True)
    return found


def main() -> None:
    """Convert, by the words of the command line."""
    if len(sys.argv) < 4:
        sys.exit((__doc__ or "").split("\n\n")[1].strip())
    checkpoint, tokenizer, output, *words = sys.argv[1:]
    if not (os.path.isabs(output) or "://" in output):
        output = f"{current().output_dir}/{output}"
    config = export(checkpoint, tokenizer, output, words)
    print(f"{output} has {config.get('architectures')} in {config.get('dtype')}")


def _convert(items: str, tokenizer: str, made: Path, words: Sequence[str]) -> None:
    found = importlib.util.find_spec("maxtext")
    if found is None or not found.submodule_search_locations:
        raise UsageError("maxtext is not installed here: run this in the environment that it was trained in")
    base = Path(found.submodule_search_locations[0], "configs", "base.yml")
    own = {
        "hardware": "cpu", "skip_jax_distributed_system": "true", "override_model_config": "true", "run_name": "export",
        "load_parameters_path": items, "base_output_directory": str(made),
    }  # fmt: skip
    kept = [word for word in words if word.partition("=")[0] not in own]
    flags = [f"--hf_model_path={tokenizer}", "--override_model_architecture"]
    argv = [
        sys.executable,
        "-m",
        CONVERTER,
        str(base),
        *kept,
        *(f"{name}={value}" for name, value in own.items()),
        *flags,
    ]
    environ = {**copies.environ(), "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "DECOUPLE_GCLOUD": "TRUE"}
    for name in (JOIN, EXPECT):  # it computes alone, on the CPU
        environ.pop(name, None)
    if (code := subprocess.run(argv, env=environ).returncode) != 0:
        raise CheckpointError(f"MaxText's converter ended with {code}; what it says stands above")


def _tokens_of(tokenizer: str) -> tuple[dict[str, int | None], int]:
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: getattr(made, name) for name in names}, len(made)


def _shapes() -> Mapping[str, Any]:
    """Return MaxText's table of the tensors of each model, which is loaded without the rest of MaxText."""
    from maxtext.checkpoint_conversion.utils.hf_shape import HF_SHAPE

    return dict(HF_SHAPE)


def _publish(made: Path, output: str) -> None:
    """Move a whole directory to its place; in a bucket the configuration, which makes it a model, comes last."""
    if "://" not in output:
        os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".model-", dir=os.path.dirname(os.path.abspath(output))) as beside:
            whole = shutil.copytree(made, os.path.join(beside, "model"), copy_function=shutil.copyfile)
            os.rename(whole, output)
        return
    from etils import epath

    for path in sorted(made.iterdir(), key=lambda each: each.name == "config.json"):
        epath.Path(path).copy(epath.Path(output) / path.name)


if __name__ == "__main__":
    main()
