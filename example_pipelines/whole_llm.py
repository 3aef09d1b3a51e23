"""The steps of a language model from its data to its server, which whole_llm_dagster.py and whole_llm_airflow.py put
together: data, pre-training by MaxText, conversion, fine-tuning by PEFT, answers to questions, promotion, deployment.

One architecture goes all the way, a Qwen3 that MaxText, transformers, PEFT and vLLM know, made small by overrides. It
learns to count ("four five six") and then to answer ("after four comes" → " five"), within minutes on two cores.

Steps that run on hosts are functions here, or commands of this file for the environment of MaxText, which has another
Python. All others are functions that an orchestrator calls where it runs.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic

HERE = Path(__file__).parent

# ---- what to change for a real slice ---------------------------------------------------------------------------------

ON_CPU: dict[str, Any] = {"accelerator": "cpu", "backend": "local"}  # where the orchestrator runs, also with a project
DATA: dict[str, Any] = {**ON_CPU, "requirements": ["google-cloud-storage>=3", "transformers>=5,<6"]}
PRETRAIN: dict[str, Any] = {
    "accelerator": "v5e-4",
    "requirements": HERE / "pretrain_maxtext.txt",
    "python": "3.12",
    "retry": kinetic.Retry(user=1),
}  # fmt: skip
CONVERT: dict[str, Any] = {**PRETRAIN, **ON_CPU}
FINETUNE: dict[str, Any] = {"accelerator": "cpu", "requirements": HERE / "training_peft.txt"}
ANSWER: dict[str, Any] = {"accelerator": "cpu", "requirements": HERE / "vllm_on_cpu" / "pyproject.toml"}
SERVING: dict[str, Any] = {"accelerator": "cpu", "image": "your-registry/vllm-cpu:0.32.0", "namespace": "serving"}
ENGINE_OPTIONS: dict[str, dict[str, Any]] = {
    "vllm": {"dtype": "float32", "max_model_len": 64, "enforce_eager": True},
    "transformers": {},
}
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1",
}  # fmt: skip

# ---- the model and what it learns ------------------------------------------------------------------------------------

VOCABULARY = 512  # of the model: room for the tokenizer's entries, which are fewer
LENGTH = 64  # tokens of a row
MODEL = [
    "model_name=qwen3-0.6b", "override_model_config=true", f"vocab_size={VOCABULARY}", "base_num_decoder_layers=2",
    "base_emb_dim=64", "base_mlp_dim=128", "base_num_query_heads=2", "base_num_kv_heads=2", "head_dim=32",
]  # fmt: skip
TRAINING = [
    "dataset_type=hf", "hf_path=json", "num_epoch=100", f"max_target_length={LENGTH}", "per_device_batch_size=2",
    "learning_rate=0.01", "checkpoint_period=20", "enable_goodput_recording=false", "monitor_goodput=false",
    "tokenizer_type=huggingface", "add_bos=false",
]  # fmt: skip
STEPS, TUNING_STEPS = 100, 120
NUMBERS = [
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
]  # fmt: skip
QUESTIONS = {f"after {one} comes": f" {two}" for one, two in itertools.pairwise(NUMBERS)}
PARAMETERS = {"max_tokens": 2, "temperature": 0}
RUN = "run"  # MaxText goes on with the run of this name in its folder


# ---- 1: data, on a host in the environment DATA ----------------------------------------------------------------------


def make_data() -> str:
    """Make the text, the questions and a tokenizer of them; return the folder.

    It has text-0.jsonl to text-3.jsonl (one for each host that reads them), questions.jsonl and tokenizer/.
    """
    folder = Path(tempfile.mkdtemp())
    lines = list(counted(400))
    for part in range(4):
        rows = [json.dumps({"text": line}) for line in lines[part::4]]
        (folder / f"text-{part}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    asked = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in QUESTIONS.items()]
    (folder / "questions.jsonl").write_text("\n".join(asked) + "\n", encoding="utf-8")
    make_tokenizer(lines + [prompt + answer for prompt, answer in QUESTIONS.items()], folder / "tokenizer")
    return kept(folder, "data")


def counted(rows: int) -> Iterator[str]:
    """Yield lines that count upwards, from anywhere."""
    draw = random.Random(7)
    for _ in range(rows):
        begin = draw.randrange(len(NUMBERS) - 1)
        yield " ".join(NUMBERS[begin : begin + draw.randint(2, 12)])


def make_tokenizer(text: Sequence[str], folder: Path) -> None:
    """Train a byte-level BPE, which has a token for any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special, alphabet = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        text, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    )
    PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=special[0], eos_token=special[2], pad_token=special[0]
    ).save_pretrained(folder)


# ---- 2: pre-training, a command in the environment PRETRAIN ----------------------------------------------------------


def pretrain_command(data: str, folder: str, steps: int = STEPS) -> list[str]:
    """Return the command that trains on a folder of `make_data`, or goes on with what is in `folder`; run it in HERE,
    with `metrics="maxtext"` and the options PRETRAIN.

    Args:
        data: What `make_data` returned.
        folder: Folder or address for the checkpoints, the same for each try.
        steps: How many to train in all.
    """
    words = [f"base_output_directory={folder}", f"run_name={RUN}", f"steps={steps}"]
    return ["python", Path(__file__).name, "pretrain", data, *MODEL, *TRAINING, *words]


def pretrain(data: str, words: Sequence[str]) -> None:
    from kinetic_orchestration.program.trainers import maxtext

    here = fetched(data)
    sys.argv[1:] = [*words, f"tokenizer_path={here}/tokenizer", f"hf_train_files={here}/text-*.jsonl"]
    maxtext.main()


# ---- 3: conversion, a command in the environment CONVERT -------------------------------------------------------------


def convert_command(data: str, folder: str, output: str) -> list[str]:
    """Return the command that converts the last checkpoint to the layout of Hugging Face's hub; run it in HERE, with
    the options CONVERT.

    Args:
        data: What `make_data` returned: the tokenizer.
        folder: That of `pretrain_command`.
        output: Folder or address of the model, which must not exist; a relative one is in the job's `output_dir`.
    """
    return ["python", Path(__file__).name, "convert", data, f"{folder.rstrip('/')}/{RUN}", output]


def convert(data: str, checkpoints: str, output: str) -> None:
    from kinetic_orchestration.program.trainers import maxtext_export

    output = output if output.startswith("/") or "://" in output else f"{kinetic.current().output_dir}/{output}"
    maxtext_export.export(checkpoints, f"{fetched(data)}/tokenizer", output, MODEL)


# ---- 4: fine-tuning, on a host in the environment FINETUNE -----------------------------------------------------------


def finetune(model: str, data: str, steps: int = TUNING_STEPS, rate: float = 0.01) -> str:
    """Teach a model to answer, by LoRA, and return the folder of the model with the adapters merged into it.

    Args:
        model: The converted model: give `kinetic.Data(output)`, so that each host has it.
        data: What `make_data` returned, as `kinetic.Data` too.
        steps: Steps of the training; with few the model knows nothing, and the check holds it back.
        rate: Its learning rate.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    host = kinetic.current()
    torch.manual_seed(0)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)  # what is this small, threads wait for more than they compute
    tokenizer = AutoTokenizer.from_pretrained(model)
    adapt = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    tuned = get_peft_model(AutoModelForCausalLM.from_pretrained(model), adapt).to(device)
    rows = [json.loads(line) for line in Path(data, "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    batch = batch_of(rows, tokenizer).to(device)
    optimizer = torch.optim.AdamW((weight for weight in tuned.parameters() if weight.requires_grad), rate)
    for step in range(1, steps + 1):
        loss = tuned(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == steps:
            host.log_metrics(step=step, loss=float(loss.detach()))
            host.progress(step, steps, unit="step")
    folder = Path(tempfile.mkdtemp())
    tuned.merge_and_unload().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return kept(folder, "model")


def batch_of(rows: Sequence[Mapping[str, str]], tokenizer: Any) -> Any:
    """Return questions with their answers as one batch, in which the answers alone are learned."""
    import torch
    from transformers import BatchEncoding

    pairs = [(tokenizer(row["prompt"]).input_ids, tokenizer(row["answer"]).input_ids) for row in rows]
    longest = max(len(prompt) + len(answer) for prompt, answer in pairs) + 1
    found: dict[str, list[list[int]]] = {"input_ids": [], "attention_mask": [], "labels": []}
    for prompt, answer in pairs:
        learned = [*answer, tokenizer.eos_token_id]
        rest = longest - len(prompt) - len(learned)
        found["input_ids"].append([*prompt, *learned, *[tokenizer.pad_token_id] * rest])
        found["attention_mask"].append([1] * (longest - rest) + [0] * rest)
        found["labels"].append([*[-100] * len(prompt), *learned, *[-100] * rest])
    return BatchEncoding({name: torch.tensor(rows) for name, rows in found.items()})


# ---- 5: answers to questions, by batch inference ---------------------------------------------------------------------


def batch_options(engine: str) -> dict[str, Any]:
    """Return the keywords of `serve_batch` that both orchestrators give, for the prompts `list(QUESTIONS)`."""
    return {
        "engine": engine, "engine_options": ENGINE_OPTIONS[engine], "parameters": PARAMETERS, "concurrency": 8,
        **ANSWER, "capture_env_vars": [*ENVIRONMENT],
    }  # fmt: skip


def score(output: str) -> tuple[float, dict[str, str]]:
    """Return the share of the questions that were answered rightly, and all answers, from a batch's `output`."""
    answers = {str(row["prompt"]): str(row.get("text", "")) for row in kinetic.read_answers(output)}
    right = sum(answers.get(prompt, "").startswith(answer) for prompt, answer in QUESTIONS.items())
    return right / len(QUESTIONS), answers


# ---- 6 to 8: promotion, deployment, smoke test, where the orchestrator runs ------------------------------------------


def promote(model: str, share: float, place: str, *, required: float, registry: str = "") -> kinetic.Promoted:
    """Make a version of a model that serving may take; PromotionRefused if it answers too few questions.

    Args:
        model: The fine-tuned model.
        share: That of the right answers.
        place: Folder or address of the versions.
        required: The least share.
        registry: Address of an MLflow server, "" without one.
    """

    def check(candidate: kinetic.Candidate) -> bool:
        return bool(candidate.metrics["right"] >= required)

    return kinetic.promote(
        model, to=place, alias="champion", check=check, metrics={"right": share},
        registry=kinetic.MLflow(registry) if registry else None,
    )  # fmt: skip


def address_for_pods(uri: str, claim: str = "models") -> str:
    """Return where pods find a version: a bucket's address as it is; a folder's as one in a volume of the cluster,
    which has to contain the folder of versions."""
    return uri if "://" in uri else f"pvc://{claim}/{'/'.join(Path(uri).parts[-2:])}"


def serving(answers: Mapping[str, str], **more: Any) -> kinetic.Serving:
    """Return the declaration of the model's server, which is asked what the batch was asked."""
    expected = {prompt: answer for prompt, answer in list(answers.items())[:4] if answer}
    smoke = kinetic.SmokeTest(expected, max_tokens=PARAMETERS["max_tokens"], tolerance=0.2)
    return kinetic.Serving("counting", smoke=smoke, **{**SERVING, **more})


# ---- folders and buckets ---------------------------------------------------------------------------------------------


def address_in(place: str, *names: str) -> str:
    """Return the address of something in a folder or a bucket; one of a folder is whole, for commands elsewhere."""
    return "/".join([place.rstrip("/") if "://" in place else os.path.abspath(place), *names])


def kept(folder: Path, name: str) -> str:
    """Move a folder of a host to the job's output, a folder or a bucket; return where it is."""
    address = f"{kinetic.current().output_dir}/{name}"
    if "://" not in address:
        shutil.rmtree(address, ignore_errors=True)  # of an attempt that was lost
        return str(shutil.copytree(folder, address))
    from google.cloud import storage

    for path in sorted(folder.rglob("*")):
        if path.is_file():
            blob = storage.Blob.from_uri(f"{address}/{path.relative_to(folder)}", client=storage.Client())
            blob.upload_from_filename(str(path))
    return address


def fetched(address: str) -> str:
    """Return a folder of this host with what is at an address, in MaxText's environment."""
    if "://" not in address:
        return address
    import fsspec

    here = tempfile.mkdtemp()
    files, path = fsspec.url_to_fs(address)  # by gcsfs, if it is in gs://
    files.get(f"{path}/", f"{here}/", recursive=True)
    return here


if __name__ == "__main__":
    step, data, *words = sys.argv[1:]
    if step == "pretrain":
        pretrain(data, words)
    else:
        convert(data, *words)
