"""Sets of kinds of steps that several themes of faults use; a theme's own set is in its module."""

LINEARS = frozenset({"linear", "first_token_linear"})
PRODUCTS = LINEARS | {"scores", "context"}
ERF_FORM = frozenset({"gelu"})
TANH_FORMS = frozenset({"gelu_new", "gelu_pytorch_tanh"})
GELUS = TANH_FORMS | ERF_FORM
RELU = frozenset({"relu"})
FUNCTIONS = GELUS | RELU
COMPUTED = PRODUCTS | FUNCTIONS | {"norm", "tanh", "probs"}
