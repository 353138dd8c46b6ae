"""With fairseq's names and attributes; the configuration is a plain object with Hugging Face's names."""

from torch import nn
from torch.nn import functional as F


class SentenceEncoderLayer(nn.Module):
    def __init__(self, dim, ffn_dim, heads, eps):
        super().__init__()
        self.heads, self.scaling = heads, (dim // heads) ** -0.5
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (nn.Linear(dim, dim) for _ in range(4))
        self.self_attn_layer_norm, self.final_layer_norm = nn.LayerNorm(dim, eps), nn.LayerNorm(dim, eps)
        self.fc1, self.fc2 = nn.Linear(dim, ffn_dim), nn.Linear(ffn_dim, dim)

    def forward(self, x, encoder_padding_mask):
        length, rows, dim = x.shape
        q, k, v = self.q_proj(x) * self.scaling, self.k_proj(x), self.v_proj(x)
        q, k, v = (y.reshape(length, rows * self.heads, -1).transpose(0, 1) for y in (q, k, v))
        weights = (q @ k.transpose(1, 2)).view(rows, self.heads, length, length)
        weights = weights.masked_fill(encoder_padding_mask[:, None, None, :], float("-inf")).softmax(-1)
        x = self.self_attn_layer_norm(
            x + self.out_proj((weights.view(-1, length, length) @ v).transpose(0, 1).reshape(length, rows, dim))
        )
        return self.final_layer_norm(x + self.fc2(F.gelu(self.fc1(x))))


class SentenceEncoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        dim = cfg.hidden_size
        self.embed_tokens = nn.Embedding(cfg.vocab_size, dim)
        self.embed_positions = nn.Embedding(cfg.max_position_embeddings, dim)
        self.segment_embeddings = nn.Embedding(cfg.type_vocab_size, dim)
        self.emb_layer_norm = nn.LayerNorm(dim, cfg.layer_norm_eps)
        self.layers = nn.ModuleList(
            SentenceEncoderLayer(dim, cfg.intermediate_size, cfg.num_attention_heads, cfg.layer_norm_eps)
            for _ in range(cfg.num_hidden_layers)
        )

    def forward(self, tokens, segment_labels, padding_mask):
        positions = self.embed_positions.weight[: tokens.shape[1]]
        x = self.emb_layer_norm(self.embed_tokens(tokens) + positions + self.segment_embeddings(segment_labels)).transpose(0, 1)
        for layer in self.layers:
            x = layer(x, padding_mask)
        return {"encoder_out": x.transpose(0, 1)}
