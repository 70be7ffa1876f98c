"""Writes a trained model as GGUF: f16, or Q8_0 with everything but the norms quantised."""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize

from model import EPSILON, load

NAMES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


def tensor_name(name):
    """The GGUF name of a parameter."""
    if name == "embedding.weight":
        return "token_embd.weight"
    if name == "output_norm":
        return "output_norm.weight"
    _, layer, *rest = name.split(".")
    if rest[0] == "norms":
        return f"blk.{layer}.{rest[1]}.weight"
    if rest[0] in ("q_norm", "k_norm"):
        return f"blk.{layer}.attn_{rest[0]}.weight"
    return f"blk.{layer}.{NAMES[rest[0]]}.weight"


def add_shape(writer, config):
    c = config
    writer.add_context_length(c.context)
    writer.add_embedding_length(c.width)
    writer.add_block_count(c.layers)
    writer.add_feed_forward_length(c.feed_forward)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_rope_freq_base(c.rope_base)
    if c.window:
        writer.add_sliding_window(c.window)
        writer.add_float32(f"{c.architecture}.rope.freq_base_swa", c.window_rope_base)


def add_tokenizer(writer, path):
    stored = json.loads(Path(path).read_text(encoding="utf-8"))
    vocabulary = stored["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    special = {t["content"] for t in stored["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in stored["model"]["merges"]]
    kinds = [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(vocabulary["<|endoftext|>"])
    writer.add_eos_token_id(vocabulary["<|im_end|>"])
    writer.add_eot_token_id(vocabulary["<|im_end|>"])
    writer.add_pad_token_id(vocabulary["<|endoftext|>"])
    writer.add_add_bos_token(False)
    template = Path(__file__).with_name("chatml.jinja").read_text(encoding="utf-8").strip()
    writer.add_chat_template(template)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--type", choices=["f16", "q8_0"], required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    model = load(args.checkpoint)
    kind = gguf.GGMLQuantizationType.Q8_0 if args.type == "q8_0" else gguf.GGMLQuantizationType.F16
    writer = gguf.GGUFWriter(args.out, model.config.architecture)
    writer.add_type("model")
    writer.add_name(args.name)
    writer.add_license("mit")
    file_type = gguf.LlamaFileType.MOSTLY_Q8_0 if args.type == "q8_0" else gguf.LlamaFileType.MOSTLY_F16
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_shape(writer, model.config)
    add_tokenizer(writer, args.tokenizer)
    for name, parameter in model.state_dict().items():
        values = parameter.float().numpy()
        if values.ndim == 1:
            writer.add_tensor(tensor_name(name), values)
            continue
        data = quantize(values, kind)
        writer.add_tensor(tensor_name(name), np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{args.out}: {Path(args.out).stat().st_size} bytes")


if __name__ == "__main__":
    main()
