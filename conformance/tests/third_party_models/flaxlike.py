"""After a port from Flax: kernels of shape (in, heads, d) and (heads, d, out), Flax's names, and a masked language model head."""

import torch
from torch import nn
from torch.nn import functional as F


class DenseGeneral(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.kernel, self.bias = nn.Parameter(torch.randn(*inputs, *outputs) * 0.02), nn.Parameter(torch.zeros(*outputs))

    def forward(self, x):
        return torch.tensordot(x, self.kernel, len(self.inputs)) + self.bias


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.scale, self.bias, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), eps

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.scale, self.bias, self.eps)


class FlaxLikeLayer(nn.Module):
    def __init__(self, width, heads, mlp_dim, eps):
        super().__init__()
        of_heads = (heads, width // heads)
        self.q, self.k, self.v = (DenseGeneral((width,), of_heads) for _ in range(3))
        self.out = DenseGeneral(of_heads, (width,))
        self.dense_in, self.dense_out = DenseGeneral((width,), (mlp_dim,)), DenseGeneral((mlp_dim,), (width,))
        self.norm_a, self.norm_b = Norm(width, eps), Norm(width, eps)

    def forward(self, x, bias):
        q, k, v = self.q(x), self.k(x), self.v(x)
        weights = (torch.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k) + bias).softmax(-1)
        x = self.norm_a(x + self.out(torch.einsum("bhqk,bkhd->bqhd", weights, v)))
        return self.norm_b(x + self.dense_out(F.gelu(self.dense_in(x))))


class FlaxLikeBert(nn.Module):
    def __init__(self, *, vocab_size, hidden_dim, num_layers, num_heads, mlp_dim, max_length, type_vocab_size, norm_eps=1e-12):
        super().__init__()
        self.embed, self.embed_pos, self.embed_type = (
            nn.Embedding(n, hidden_dim) for n in (vocab_size, max_length, type_vocab_size)
        )
        self.embed_norm = Norm(hidden_dim, norm_eps)
        self.encoder = nn.ModuleDict(
            {"layer": nn.ModuleList(FlaxLikeLayer(hidden_dim, num_heads, mlp_dim, norm_eps) for _ in range(num_layers))}
        )
        self.mlm_dense, self.mlm_norm = DenseGeneral((hidden_dim,), (hidden_dim,)), Norm(hidden_dim, norm_eps)
        self.mlm_bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, input_ids, token_type_ids=None, attention_mask=None, deterministic=True):
        where = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.embed_norm(self.embed(input_ids) + self.embed_pos(where) + self.embed_type(token_type_ids))
        bias = (attention_mask[:, None, None, :] == 0) * -1e9
        for layer in self.encoder["layer"]:
            x = layer(x, bias)
        return self.mlm_norm(F.gelu(self.mlm_dense(x))) @ self.embed.weight.T + self.mlm_bias
