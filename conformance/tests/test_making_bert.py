"""The first seed implementation: its module tree as printed in the exercise, and each of its components."""

import re

from conformance import check
from conformance.implementations.making_bert import (
    Bert,
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


def test_with_the_original_weights_it_conforms_embedding_by_embedding_and_layer_by_layer() -> None:
    result = check(making_bert, "deep")
    assert result.conforms, result.reason
    seen = {v.activation for v in result.verdicts if v.outcome == "pass"}
    assert {"embeddings.LayerNorm", *(f"encoder.layer.{i}.output.LayerNorm" for i in range(12))} <= seen
