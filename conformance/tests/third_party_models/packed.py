"""Built on `nn.TransformerEncoder`: packed query, key and value, a mask that is true at padding, a pooler, and an optional
sequence-first layout."""

import torch
from torch import nn


class PackedBert(nn.Module):
    def __init__(self, ntoken, d_model, nlayers, nhead, dim_feedforward, max_seq_len, dropout=0.1):
        super().__init__()
        self.tok, self.pos, self.typ = nn.Embedding(ntoken, d_model), nn.Embedding(max_seq_len, d_model), nn.Embedding(2, d_model)
        self.ln, self.drop = nn.LayerNorm(d_model, 1e-12), nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            d_model, nhead, dim_feedforward, dropout, "gelu", layer_norm_eps=1e-12, batch_first=False
        )
        self.trunk = nn.TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.pooled = nn.Linear(d_model, d_model)

    def forward(self, ids, types, *, key_padding_mask):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device)) + self.typ(types)
        x = self.trunk(self.drop(self.ln(x)).transpose(0, 1), src_key_padding_mask=key_padding_mask).transpose(0, 1)
        return x, torch.tanh(self.pooled(x[:, 0]))
