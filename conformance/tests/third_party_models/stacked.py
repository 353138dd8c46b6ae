"""All layers in one tensor per kind of parameter and `einsum` for every product; only the network itself is a module."""

import torch
from torch import nn
from torch.nn import functional as F


class StackedBert(nn.Module):
    def __init__(self, n_tokens, width, depth, n_heads, mlp_dim, n_positions, n_kinds=2, eps=1e-12):
        super().__init__()
        self.n_heads, self.eps, self.width = n_heads, eps, width

        def kernel(*shape):
            return nn.Parameter(torch.randn(*shape) * 0.02)

        def gain(*shape):
            return nn.Parameter(torch.ones(*shape))

        def shift(*shape):
            return nn.Parameter(torch.zeros(*shape))

        self.table, self.places, self.kinds = kernel(n_tokens, width), kernel(n_positions, width), kernel(n_kinds, width)
        self.g0, self.b0 = gain(width), shift(width)
        self.a1, self.a2, self.a3, self.a4 = (kernel(depth, width, width) for _ in range(4))
        self.c1, self.c2, self.c3, self.c4 = (shift(depth, width) for _ in range(4))
        self.up, self.up_shift = kernel(depth, width, mlp_dim), shift(depth, mlp_dim)
        self.down, self.down_shift = kernel(depth, mlp_dim, width), shift(depth, width)
        self.g1, self.s1, self.g2, self.s2 = gain(depth, width), shift(depth, width), gain(depth, width), shift(depth, width)

    def heads(self, x):
        return x.view(*x.shape[:2], self.n_heads, -1)

    def forward(self, tokens, kinds, allowed):
        x = self.table[tokens] + self.places[: tokens.shape[1]] + self.kinds[kinds]
        x = F.layer_norm(x, (self.width,), self.g0, self.b0, self.eps)
        for i in range(len(self.up)):
            q, k, v = (torch.einsum("bsi,io->bso", x, w[i]) for w in (self.a4, self.a1, self.a3))
            q, k, v = self.heads(q + self.c4[i]), self.heads(k + self.c1[i]), self.heads(v + self.c3[i])
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
            scores = scores.masked_fill(~allowed[:, None, None, :], -1e9)
            seen = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)
            attended = torch.einsum("bsi,io->bso", seen, self.a2[i]) + self.c2[i]
            x = F.layer_norm(x + attended, (self.width,), self.g1[i], self.s1[i], self.eps)
            inner = F.gelu(torch.einsum("bsi,io->bso", x, self.up[i]) + self.up_shift[i])
            x = x + torch.einsum("bsi,io->bso", inner, self.down[i]) + self.down_shift[i]
            x = F.layer_norm(x, (self.width,), self.g2[i], self.s2[i], self.eps)
        return x
