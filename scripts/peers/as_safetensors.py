"""Writes a model of models/ as a folder for mlx_lm and transformers: as_safetensors.py MODEL.gguf FOLDER."""

import json
import sys
from pathlib import Path

import numpy
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

# How qwen2 cuts a text before it is made into tokens.
PRE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
}
FFN_NORMS = {
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "qwen3": {"ffn_norm": "post_attention_layernorm"},
}


def main(source: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(source)
    values = {name: field.contents() for name, field in reader.fields.items()}
    architecture = values["general.architecture"]
    names = NAMES | FFN_NORMS[architecture]
    tensors = {}
    for tensor in reader.tensors:
        name = tensor.name.removesuffix(".weight")
        layer = ""
        if name.startswith("blk."):
            _, number, name = name.split(".", 2)
            layer = f"model.layers.{number}."
        data = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        # llama.cpp's file has the 1 of gemma's norms in it.
        if architecture == "gemma3" and name.endswith("norm"):
            data = data - 1
        tensors[f"{layer}{names[name]}.weight"] = numpy.ascontiguousarray(data)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})

    def of(key: str):
        return values[f"{architecture}.{key}"]

    tokens = values["tokenizer.ggml.tokens"]
    config = {
        "architectures": [{"gemma3": "Gemma3ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[architecture]],
        "model_type": {"gemma3": "gemma3_text", "qwen3": "qwen3"}[architecture],
        "vocab_size": len(tokens),
        "hidden_size": of("embedding_length"),
        "num_hidden_layers": of("block_count"),
        "intermediate_size": of("feed_forward_length"),
        "num_attention_heads": of("attention.head_count"),
        "num_key_value_heads": of("attention.head_count_kv"),
        "head_dim": of("attention.key_length"),
        "rms_norm_eps": of("attention.layer_norm_rms_epsilon"),
        "rope_theta": of("rope.freq_base"),
        "max_position_embeddings": of("context_length"),
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": values["tokenizer.ggml.eos_token_id"],
    }
    if architecture == "gemma3":
        config |= {
            "sliding_window": of("attention.sliding_window"),
            "sliding_window_pattern": 6,
            "rope_local_base_freq": of("rope.freq_base_swa"),
            "query_pre_attn_scalar": of("attention.key_length"),
        }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(values, tokens, folder)


def write_tokenizer(values: dict, tokens: list, folder: Path) -> None:
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = values["tokenizer.ggml.token_type"]
    controls = [token for token, kind in zip(tokens, kinds) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in controls])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": values["tokenizer.chat_template"],
        "eos_token": tokens[values["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[values["tokenizer.ggml.padding_token_id"]],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
