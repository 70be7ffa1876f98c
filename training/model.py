"""The two architectures as llama.cpp computes them, in plain PyTorch.

Qwen 3: RMS norm on queries and keys, SwiGLU. Gemma 3: embeddings times sqrt(width), norms before and
after attention and feed-forward, GeGLU (tanh), five windowed layers to one full layer. Both: grouped
queries, NEOX rotation, output tied to the embeddings.

Norm weights are plain factors, as in GGUF (not 1 + w as in Gemma's own checkpoints).
"""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn

EPSILON = 1e-6


@dataclass
class Config:
    """Sizes; `window` is 0 for qwen3."""

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    head_dim: int = 64
    rope_base: float = 1_000_000.0
    window: int = 0
    window_rope_base: float = 10_000.0
    context: int = 8192

    def windowed(self, layer):
        """llama.cpp's rule for gemma3: every sixth layer sees everything."""
        return self.window > 0 and layer % 6 != 5


CONFIGS = {
    "nano-coder": dict(architecture="qwen3", layers=6, width=256, heads=4, kv_heads=2, feed_forward=512),
    "nano-writer": dict(
        architecture="gemma3", layers=7, width=256, heads=4, kv_heads=2, feed_forward=384, window=256
    ),
    "nano-draft": dict(architecture="qwen3", layers=3, width=128, heads=2, kv_heads=1, feed_forward=320),
}


def norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), EPSILON)


def rotation(positions, base, head_dim):
    """Cosine and sine, each `[positions, head_dim / 2]`."""
    half = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = positions.float()[:, None] * (base**-half)[None, :]
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    """NEOX order: the two halves of a head turn together. `x` is `[batch, heads, tokens, head_dim]`."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Block(nn.Module):
    """One layer."""

    def __init__(self, config, layer):
        super().__init__()
        c = self.config = config
        self.gemma = c.architecture == "gemma3"
        self.windowed = c.windowed(layer)
        self.q = nn.Linear(c.width, c.heads * c.head_dim, bias=False)
        self.k = nn.Linear(c.width, c.kv_heads * c.head_dim, bias=False)
        self.v = nn.Linear(c.width, c.kv_heads * c.head_dim, bias=False)
        self.o = nn.Linear(c.heads * c.head_dim, c.width, bias=False)
        self.gate = nn.Linear(c.width, c.feed_forward, bias=False)
        self.up = nn.Linear(c.width, c.feed_forward, bias=False)
        self.down = nn.Linear(c.feed_forward, c.width, bias=False)
        names = ["attn_norm", "ffn_norm"]
        if self.gemma:
            names += ["post_attention_norm", "post_ffw_norm"]
        self.norms = nn.ParameterDict({n: nn.Parameter(torch.ones(c.width)) for n in names})
        self.q_norm = nn.Parameter(torch.ones(c.head_dim))
        self.k_norm = nn.Parameter(torch.ones(c.head_dim))

    def heads(self, x, count):
        return x.view(x.shape[0], x.shape[1], count, self.config.head_dim).transpose(1, 2)

    def attention(self, x, turn, mask, past):
        """`past`: keys and values of the shared prefix, of batch size 1."""
        c = self.config
        cos, sin = turn
        q = rotate(norm(self.heads(self.q(x), c.heads), self.q_norm), cos, sin)
        k = rotate(norm(self.heads(self.k(x), c.kv_heads), self.k_norm), cos, sin)
        v = self.heads(self.v(x), c.kv_heads)
        own = (k, v)
        if past is not None:
            batch = x.shape[0]
            k = torch.cat((past[0].expand(batch, -1, -1, -1), k), dim=2)
            v = torch.cat((past[1].expand(batch, -1, -1, -1), v), dim=2)
        batch, tokens = x.shape[:2]
        # Query heads of one group side by side: `[batch, kv_heads, group * tokens, head_dim]`. Written
        # out because PyTorch's fused attention is several times slower on a CPU.
        q = (q * c.head_dim**-0.5).to(v.dtype).reshape(batch, c.kv_heads, -1, c.head_dim)
        scores = (q @ k.to(v.dtype).transpose(-1, -2)).view(batch, c.kv_heads, -1, tokens, k.shape[2])
        with torch.autocast("cpu", enabled=False):
            shares = torch.softmax(scores + mask.to(v.dtype), dim=-1)
        y = shares.view(batch, c.kv_heads, -1, k.shape[2]) @ v
        y = y.view(batch, c.heads, tokens, c.head_dim).transpose(1, 2).reshape(batch, tokens, -1)
        return self.o(y), own

    def forward(self, x, turn, mask, past):
        y, own = self.attention(norm(x, self.norms["attn_norm"]), turn, mask, past)
        if self.gemma:
            y = norm(y, self.norms["post_attention_norm"])
        x = x + y
        h = norm(x, self.norms["ffn_norm"])
        gate = self.gate(h)
        gate = F.gelu(gate, approximate="tanh") if self.gemma else F.silu(gate)
        y = self.down(gate * self.up(h))
        if self.gemma:
            y = norm(y, self.norms["post_ffw_norm"])
        return x + y, own


class Nano(nn.Module):
    """Tokens to hidden states; `logits` makes scores of them."""

    def __init__(self, config):
        super().__init__()
        self.config = c = config
        self.embedding = nn.Embedding(c.vocabulary, c.width)
        self.blocks = nn.ModuleList([Block(c, i) for i in range(c.layers)])
        self.output_norm = nn.Parameter(torch.ones(c.width))
        self.scale = c.width**0.5 if c.architecture == "gemma3" else 1.0
        self.initialise()

    def initialise(self):
        deep = (2 * self.config.layers) ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            if name.startswith("embedding"):
                # The tied output wants small rows; Gemma scales them up on the way in.
                nn.init.normal_(parameter, std=self.config.width**-0.5)
                continue
            std = parameter.shape[1] ** -0.5
            out = name.endswith(("o.weight", "down.weight"))
            nn.init.normal_(parameter, std=std * deep if out else std)

    def forward(self, tokens, past=None, gap=0):
        """Hidden states `[batch, tokens, width]` and each layer's keys and values.

        `gap` moves the positions of these tokens away from those of `past`, in the layers that see all.
        """
        c = self.config
        start = 0 if past is None else past[0][0].shape[2]
        count = tokens.shape[1]
        positions = torch.arange(start, start + count)
        distance = positions[:, None] - torch.arange(start + count)[None, :]
        hidden = torch.tensor(float("-inf"))
        full_mask = torch.where(distance >= 0, 0.0, hidden)
        window_mask = torch.where(distance < c.window, full_mask, hidden)
        full = rotation(positions + gap, c.rope_base, c.head_dim)
        window = rotation(positions, c.window_rope_base, c.head_dim)
        x = self.embedding(tokens) * self.scale
        kept = []
        for i, block in enumerate(self.blocks):
            turn, mask = (window, window_mask) if block.windowed else (full, full_mask)
            x, own = block(x, turn, mask, None if past is None else past[i])
            kept.append(own)
        return norm(x, self.output_norm), kept

    def logits(self, hidden):
        return F.linear(hidden, self.embedding.weight)


def save(model, path, **extra):
    torch.save({"config": asdict(model.config), "weights": model.state_dict(), **extra}, path)


def load(path):
    stored = torch.load(path, weights_only=True)
    model = Nano(Config(**stored["config"]))
    model.load_state_dict(stored["weights"])
    return model.eval()
