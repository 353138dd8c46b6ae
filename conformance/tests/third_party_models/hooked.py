"""With an identity module for every value to be observed, kernels of shape (in, out), an additive mask, and a pooler that
forward does not call."""

import torch
from torch import nn
from torch.nn import functional as F


class Product(nn.Module):
    def __init__(self, *shape, bias):
        super().__init__()
        self.W, self.b = nn.Parameter(torch.randn(shape) * 0.02), nn.Parameter(torch.zeros(bias))


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w, self.b, self.hook_scale = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), nn.Identity()

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return x / self.hook_scale((x.pow(2).mean(-1, keepdim=True) + 1e-12).sqrt()) * self.w + self.b


class Block(nn.Module):
    def __init__(self, d_model, n_heads, d_mlp):
        super().__init__()
        d = d_model // n_heads
        self.Q, self.K, self.V = (Product(n_heads, d_model, d, bias=(n_heads, d)) for _ in range(3))
        self.hook_q, self.hook_k, self.hook_v, self.hook_scores, self.hook_pattern, self.hook_z, self.hook_out, self.hook_act = (
            nn.Identity() for _ in range(8)
        )
        self.O = Product(n_heads, d, d_model, bias=d_model)
        self.up, self.down = Product(d_model, d_mlp, bias=d_mlp), Product(d_mlp, d_model, bias=d_model)
        self.ln1, self.ln2 = Norm(d_model), Norm(d_model)

    def forward(self, x, added):
        q, k, v = (
            hook(torch.einsum("bsi,hid->bshd", x, part.W) + part.b)
            for hook, part in ((self.hook_q, self.Q), (self.hook_k, self.K), (self.hook_v, self.V))
        )
        scores = self.hook_scores(torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5)
        z = self.hook_z(torch.einsum("bhqk,bkhd->bqhd", self.hook_pattern((scores + added).softmax(-1)), v))
        x = self.ln1(x + self.hook_out(torch.einsum("bqhd,hdo->bqo", z, self.O.W) + self.O.b))
        return self.ln2(x + self.hook_act(F.gelu(x @ self.up.W + self.up.b)) @ self.down.W + self.down.b)


class HookedBert(nn.Module):
    def __init__(self, d_vocab, d_model, n_layers, n_heads, d_mlp, n_ctx):
        super().__init__()
        self.W_E, self.W_pos, self.W_type = (nn.Parameter(torch.randn(n, d_model)) for n in (d_vocab, n_ctx, 2))
        self.ln, self.blocks = Norm(d_model), nn.ModuleList(Block(d_model, n_heads, d_mlp) for _ in range(n_layers))
        self.pooler, self.head, self.head_ln = (
            Product(d_model, d_model, bias=d_model),
            Product(d_model, d_model, bias=d_model),
            Norm(d_model),
        )
        self.unembed = Product(d_model, d_vocab, bias=d_vocab)

    def pooled(self, x):
        return torch.tanh(x[:, 0] @ self.pooler.W + self.pooler.b)

    def forward(self, input, return_type="logits", token_type_ids=None, one_zero_attention_mask=None):
        added = torch.where(one_zero_attention_mask[:, None, None, :] > 0, 0.0, float("-inf"))
        x = self.ln(self.W_E[input] + self.W_pos[: input.shape[1]] + self.W_type[token_type_ids])
        for block in self.blocks:
            x = block(x, added)
        x = self.head_ln(F.gelu(x @ self.head.W + self.head.b))
        return x @ self.unembed.W + self.unembed.b if return_type == "logits" else None
