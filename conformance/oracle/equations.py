"""The step class of each kind of activation."""

from collections.abc import Mapping

from conformance.oracle.bilinear import Context, Scores
from conformance.oracle.distances import DistanceLookup, KeyDistanceScores, QueryDistanceScores, ScoresSum
from conformance.oracle.dropout import Dropout
from conformance.oracle.embeddings import Copy, EncoderStates, PositionLookup, Sinusoids, Sum, TokenTypeLookup, WordLookup
from conformance.oracle.gradients.distances import (
    DistanceLookupGradient,
    KeyDistanceBackwardDistance,
    KeyDistanceBackwardKey,
    QueryDistanceBackwardDistance,
    QueryDistanceBackwardQuery,
)
from conformance.oracle.gradients.losses import (
    ChoiceCrossEntropyBackward,
    CrossEntropyBackward,
    MeanLossBackward,
    NegativeLogLikelihoodBackward,
    SpanCrossEntropyBackward,
)
from conformance.oracle.gradients.norm import NormBackward, NormGradient
from conformance.oracle.gradients.pointwise import GeluBackward, GeluTanhBackward, ReluBackward, TanhBackward
from conformance.oracle.gradients.pooling import MaximumBackward, UnitBackward, WeightedBackward
from conformance.oracle.gradients.products import (
    ContextBackwardProbs,
    ContextBackwardValue,
    FirstTokenLinearBackward,
    FirstTokenLinearGradient,
    LinearBackward,
    LinearGradient,
    ScoresBackwardKey,
    ScoresBackwardQuery,
)
from conformance.oracle.gradients.softmax import LogSoftmaxBackward, ProbabilitiesBackward
from conformance.oracle.gradients.sums import (
    BiasGradient,
    PositionLookupGradient,
    Seed,
    TokenTypeLookupGradient,
    WordLookupGradient,
)
from conformance.oracle.gradients.target_losses import BinaryCrossEntropyBackward, SquaredErrorBackward
from conformance.oracle.initialization import InitialConstant, InitialDraw
from conformance.oracle.linear import FirstTokenLinear, Linear
from conformance.oracle.losses import (
    ChoiceCrossEntropy,
    CrossEntropy,
    MeanLoss,
    NegativeLogLikelihood,
    SpanCrossEntropy,
    TotalLoss,
)
from conformance.oracle.norm import Norm
from conformance.oracle.optimizer import Adam, GivenGradient, GradientNorm, Initial
from conformance.oracle.pointwise import Gelu, GeluTanh, Relu, Tanh
from conformance.oracle.pooling import Maximum, Unit, Weighted
from conformance.oracle.softmax import LogSoftmax, Probabilities
from conformance.oracle.step import Step
from conformance.oracle.target_losses import BinaryCrossEntropy, SquaredError

EQUATIONS: Mapping[str, type[Step]] = {
    "word_lookup": WordLookup,
    "position_lookup": PositionLookup,
    "token_type_lookup": TokenTypeLookup,
    "sinusoids": Sinusoids,
    "encoder_states": EncoderStates,
    "sum": Sum,
    "copy": Copy,
    "dropout": Dropout,
    "norm": Norm,
    "linear": Linear,
    "first_token_linear": FirstTokenLinear,
    "scores": Scores,
    "distance_lookup": DistanceLookup,
    "query_distance_scores": QueryDistanceScores,
    "key_distance_scores": KeyDistanceScores,
    "scores_sum": ScoresSum,
    "probs": Probabilities,
    "context": Context,
    "gelu": Gelu,
    "gelu_new": GeluTanh,
    "gelu_pytorch_tanh": GeluTanh,
    "relu": Relu,
    "tanh": Tanh,
    "log_softmax": LogSoftmax,
    "masked_lm_loss": CrossEntropy,
    "masked_lm_loss_of_log_probs": NegativeLogLikelihood,
    "next_sentence_loss": CrossEntropy,
    "next_sentence_loss_of_log_probs": NegativeLogLikelihood,
    "classification_loss": CrossEntropy,
    "token_classification_loss": CrossEntropy,
    "span_start_loss": SpanCrossEntropy,
    "span_end_loss": SpanCrossEntropy,
    "multiple_choice_loss": ChoiceCrossEntropy,
    "regression_loss": SquaredError,
    "multi_label_loss": BinaryCrossEntropy,
    "mean_loss": MeanLoss,
    "total_loss": TotalLoss,
    "pooling-cls": Weighted,
    "pooling-mean": Weighted,
    "pooling-mean-sqrt-length": Weighted,
    "pooling-weighted-mean": Weighted,
    "pooling-last": Weighted,
    "pooling-max": Maximum,
    "unit": Unit,
    "seed": Seed,
    "dropout_backward": Dropout,
    "linear_backward": LinearBackward,
    "first_token_linear_backward": FirstTokenLinearBackward,
    "norm_backward": NormBackward,
    "scores_backward_query": ScoresBackwardQuery,
    "scores_backward_key": ScoresBackwardKey,
    "query_distance_scores_backward_query": QueryDistanceBackwardQuery,
    "query_distance_scores_backward_distance": QueryDistanceBackwardDistance,
    "key_distance_scores_backward_key": KeyDistanceBackwardKey,
    "key_distance_scores_backward_distance": KeyDistanceBackwardDistance,
    "context_backward_probs": ContextBackwardProbs,
    "context_backward_value": ContextBackwardValue,
    "probs_backward": ProbabilitiesBackward,
    "gelu_backward": GeluBackward,
    "gelu_new_backward": GeluTanhBackward,
    "gelu_pytorch_tanh_backward": GeluTanhBackward,
    "relu_backward": ReluBackward,
    "tanh_backward": TanhBackward,
    "log_softmax_backward": LogSoftmaxBackward,
    "masked_lm_loss_backward": CrossEntropyBackward,
    "masked_lm_loss_of_log_probs_backward": NegativeLogLikelihoodBackward,
    "next_sentence_loss_backward": CrossEntropyBackward,
    "next_sentence_loss_of_log_probs_backward": NegativeLogLikelihoodBackward,
    "classification_loss_backward": CrossEntropyBackward,
    "token_classification_loss_backward": CrossEntropyBackward,
    "span_start_loss_backward": SpanCrossEntropyBackward,
    "span_end_loss_backward": SpanCrossEntropyBackward,
    "multiple_choice_loss_backward": ChoiceCrossEntropyBackward,
    "regression_loss_backward": SquaredErrorBackward,
    "multi_label_loss_backward": BinaryCrossEntropyBackward,
    "mean_loss_backward": MeanLossBackward,
    "pooling-cls_backward": WeightedBackward,
    "pooling-mean_backward": WeightedBackward,
    "pooling-mean-sqrt-length_backward": WeightedBackward,
    "pooling-weighted-mean_backward": WeightedBackward,
    "pooling-last_backward": WeightedBackward,
    "pooling-max_backward": MaximumBackward,
    "unit_backward": UnitBackward,
    "linear_gradient": LinearGradient,
    "first_token_linear_gradient": FirstTokenLinearGradient,
    "bias_gradient": BiasGradient,
    "norm_gradient": NormGradient,
    "word_lookup_gradient": WordLookupGradient,
    "position_lookup_gradient": PositionLookupGradient,
    "token_type_lookup_gradient": TokenTypeLookupGradient,
    "distance_lookup_gradient": DistanceLookupGradient,
    "initial_constant": InitialConstant,
    "initial_draw": InitialDraw,
    "initial": Initial,
    "given_gradient": GivenGradient,
    "gradient_norm": GradientNorm,
    "adam": Adam,
}
