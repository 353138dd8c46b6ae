"""The first seed implementation: its module tree as printed in the exercise, and each of its components."""

import re

import torch

from conformance import check
from conformance.implementations.making_bert import (
    Bert,
    BertEmbedding,
    BertLayer,
    BertLMHead,
    NormedResidualLayer,
    PureSelfAttentionLayer,
    SelfAttentionLayer,
    making_bert,
)

# Nesting, name and class of every module, in the order of the exercise.
TREE = """
Bert
  embedding BertEmbedding
    token_embedding Embedding
    position_embedding Embedding
    token_type_embedding Embedding
    layer_norm LayerNorm
    dropout Dropout
  transformer Sequential
    0 BertLayer
      attention SelfAttentionLayer
        attention PureSelfAttentionLayer
          project_query Linear
          project_key Linear
          project_value Linear
          dropout Dropout
        mlp Linear
        layer_norm LayerNorm
        dropout Dropout
      residual NormedResidualLayer
        mlp1 Linear
        mlp2 Linear
        layer_norm LayerNorm
        dropout Dropout
  lm_head BertLMHead
    mlp Linear
    unembedding Linear
    layer_norm LayerNorm
"""


def test_the_module_tree_prints_as_in_the_exercise_and_has_its_sizes() -> None:
    model = Bert(num_layers=1)
    modules = re.findall(r"^( *)(?:\((\w+)\): )?(\w+)\(", repr(model), re.MULTILINE)
    assert "\n".join(f"{indent}{name + ' ' if name else ''}{kind}" for indent, name, kind in modules) == TREE.strip()
    assert model.embedding.position_embedding.weight.shape == (512, 768)
    assert model.embedding.token_type_embedding.weight.shape == (2, 768)
    assert model.lm_head.unembedding.weight.shape == (28996, 768)
    assert model.lm_head.unembedding.weight is model.embedding.token_embedding.weight


def test_every_component_works_alone_with_the_signature_of_the_exercise() -> None:
    torch.manual_seed(0)
    ids, types = torch.randint(0, 50, (2, 5)), torch.zeros(2, 5, dtype=torch.int64)
    hidden = BertEmbedding(50, 8, 16).eval()(ids, types)
    assert hidden.shape == (2, 5, 8)
    assert torch.allclose(hidden.mean(-1), torch.zeros(2, 5), atol=1e-6)
    assert torch.allclose(hidden.var(-1, unbiased=False), torch.ones(2, 5), atol=1e-4)
    for layer in (PureSelfAttentionLayer(8, 2), SelfAttentionLayer(8, 2), NormedResidualLayer(8, 16), BertLayer(8, 16, 2)):
        assert layer.eval()(hidden).shape == hidden.shape
    assert BertLMHead(8, 50)(hidden).shape == (2, 5, 50)
    bert = Bert(50, 8, 16, intermediate_size=16, num_layers=2, num_heads=2).eval()
    assert bert(ids, types).shape == (2, 5, 50)


def test_with_the_original_weights_it_conforms_embedding_by_embedding_and_layer_by_layer() -> None:
    result = check(making_bert, "deep")
    assert result.conforms, result.reason
    seen = {v.activation for v in result.verdicts if v.outcome == "pass"}
    assert {"embeddings.LayerNorm", *(f"encoder.layer.{i}.output.LayerNorm" for i in range(12))} <= seen
