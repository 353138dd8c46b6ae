"""Sets of kinds of steps on which several themes of faults act; a set that one theme alone uses is in the theme's module."""

LINEARS = frozenset({"linear", "first_token_linear"})
PRODUCTS = LINEARS | {"scores", "context"}
ERF_FORM = frozenset({"gelu"})
TANH_FORMS = frozenset({"gelu_new", "gelu_pytorch_tanh"})
GELUS = TANH_FORMS | ERF_FORM
RELU = frozenset({"relu"})
FUNCTIONS = GELUS | RELU
COMPUTED = PRODUCTS | FUNCTIONS | {"norm", "tanh", "probs"}
