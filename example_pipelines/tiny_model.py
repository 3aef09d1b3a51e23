"""A language model that knows nothing, in the layout of Hugging Face's hub: what the examples serve and evaluate.

Nothing is downloaded: the weights are random, and the tokenizer is made from a few sentences.
"""

from __future__ import annotations

TEXT = "two and two are four, three and four are seven; the sky is blue and water is wet"
LENGTH = 256  # tokens of a prompt and its answer


def make(folder: str) -> str:
    """Write the model into a folder, on a host whose environment has transformers; returns the folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    end, alphabet = "<|endoftext|>", pre_tokenizers.ByteLevel.alphabet()
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.train_from_iterator(
        [TEXT] * 10, trainers.BpeTrainer(vocab_size=400, special_tokens=[end], initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=end, pad_token=end)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    shape = Qwen2Config(
        vocab_size=400, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=0,
        tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    Qwen2ForCausalLM(shape).save_pretrained(folder)
    return folder
