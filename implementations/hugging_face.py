"""Hugging Face's BERT, with eager attention, with scaled-dot-product attention, and compiled."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from conformance import (
    Architecture,
    Checkpoint,
    ModuleRunner,
    PretrainingConventions,
    PretrainingCorpus,
    PretrainingData,
    Showing,
    Tap,
    TorchBatch,
    Training,
    Unsupported,
    captured,
    captured_step,
    captured_with_gradients,
)

from .hugging_face_losses import losses
from .sentence_pooling import dense_layers, sentence_embedding
from .transformers_versions import (
    for_each_query,
    is_of_version_4,
    require_transformers,
    tokenizer_of,
    without_initialization,
)

Reader = Callable[[str], tuple[list[int], list[tuple[int, int]]]]  # maps a text to token ids and their offsets

# Losses that are computed from other losses.
_SUMS = {
    "cls.loss": ("cls.predictions.loss", "cls.seq_relationship.loss"),
    "qa_outputs.loss": ("qa_outputs.start_loss", "qa_outputs.end_loss"),
}


BATCH_SIZE = 32


def tokenized(corpus: PretrainingCorpus) -> tuple[Any, list[dict[str, list[int]]]]:
    """Return the tokenizer for the corpus's vocabulary, and one row for each utterance."""
    tokenizer = tokenizer_of(corpus.vocabulary)
    texts = [text for conversation in corpus.conversations for text in conversation]
    found = tokenizer(texts, truncation=True, max_length=corpus.length, return_special_tokens_mask=True)
    return tokenizer, [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


def _epoch_of(corpus: PretrainingCorpus, epoch: int) -> Iterator[dict[str, Tensor]]:
    """Yield the shuffled batches of an epoch, as `Trainer.get_train_dataloader` makes them; each row is an utterance."""
    from transformers import DataCollatorForLanguageModeling

    tokenizer, rows = tokenized(corpus)
    seed = zlib.crc32(repr((corpus.seed, epoch)).encode())
    shuffle = torch.Generator().manual_seed(seed)
    collator = DataCollatorForLanguageModeling(tokenizer)
    collator.generator = torch.Generator().manual_seed(seed)  # the collator's argument `seed` is rejected in a worker process
    yield from DataLoader(rows, BATCH_SIZE, shuffle=True, generator=shuffle, collate_fn=collator)  # type: ignore[arg-type]


pretraining_data = PretrainingData(_epoch_of, PretrainingConventions(special_replacements=True, dynamic=True))


class BertWithHeads(nn.ModuleDict):
    """`transformers`' BertModel under the name `bert`, with each head under Hugging Face's name for it.

    (B, S) ids, mask and token types -> the last hidden state and every head's logits, by activation name.

    Attributes:
        of_tokens: whether the classifier reads every token instead of the pooled sequence.
        pooling, normalize: settings of the sentence embedding, as in `conformance.Architecture`.
    """

    of_tokens = False
    pooling = ""
    normalize = False

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None, **further: Tensor
    ) -> dict[str, Tensor]:
        """Run the forward pass; `further` holds position ids, and an encoder's states with their mask."""
        bert: Any = self["bert"]
        if attention_mask is not None and attention_mask.dim() == 3:
            attention_mask = for_each_query(attention_mask, next(self.parameters()).dtype)
        outputs = bert(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, **further)
        hidden, pooled = outputs.last_hidden_state, outputs.pooler_output  # (B, S, H), (B, H)
        found = {f"encoder.layer.{len(bert.encoder.layer) - 1}.output.LayerNorm": hidden}
        heads = dict(self["cls"].named_children()) if "cls" in self else {}
        if "predictions" in heads:
            found["cls.predictions.decoder"] = heads["predictions"](hidden)  # (B, S, V)
        if "seq_relationship" in heads:
            found["cls.seq_relationship"] = heads["seq_relationship"](pooled)  # (B, 2)
        if "classifier" in self:
            read = hidden if self.of_tokens else pooled
            found["classifier"] = self["classifier"](self["dropout"](read))  # (B, labels), for token classification (B, S, labels)
        if self.pooling:
            dense: Any = self["sentence_embedding"].get_submodule("dense") if "sentence_embedding" in self else ()
            found |= sentence_embedding(hidden, attention_mask, self.pooling, dense, self.normalize)
        if "qa_outputs" in self:
            found["qa_outputs"] = self["qa_outputs"](hidden)  # (B, S, 2), start and end logits
        return found


class HuggingFace:
    """`transformers`' BertModel with the heads of the checkpoint.

    Args:
        attention: `eager` or `sdpa`, as `attn_implementation`.
        name: name in results.
    """

    features = (
        "relative_key", "relative_key_query", "is_decoder", "add_cross_attention", "pruned_heads", "position_ids",
        "attention_mask_3d", "dense",
    )  # fmt: skip
    pretraining_data = pretraining_data

    def __init__(self, attention: str, name: str | None = None) -> None:
        """Store the settings; the model is built by `prepare`."""
        self.attention = attention
        self.name = name or f"hf-{attention}"

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Return why transformers' BERT does not support the architecture, or None if it does.

        Raises:
            DependencyMissingError: transformers is not installed.
        """
        require_transformers()
        positions = architecture.position_embedding_type
        if positions != "absolute" and not (architecture.has_relative_positions and is_of_version_4()):
            version = ", from version 5 on" if architecture.has_relative_positions else ""
            return f"transformers' BERT has no {positions} positions{version}"
        if architecture.pruned_heads and not is_of_version_4():
            return "transformers' BERT prunes no heads, from version 5 on"
        if architecture.position_offset:
            return f"transformers' BERT counts positions from 0, not from {architecture.position_offset}"
        if not architecture.embedding_norm or architecture.shared_layer_norm:
            return "transformers' BERT has a LayerNorm of its own at the embeddings and at each residual"
        if architecture.problem_type == "single_label_classification" and architecture.num_labels == 1:
            return "transformers' single-label classification has two labels or more"
        if any(head.startswith("plain_") for head in architecture.heads):
            return "transformers' BERT has the paper's heads"
        return None

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> ModuleRunner:
        """Return a runner for the model built from the checkpoint, with its activations captured."""
        model = self.module(checkpoint, device, dtype)

        def initial() -> Iterator[tuple[str, nn.Parameter]]:
            return self.untrained(checkpoint.architecture).to(device=device, dtype=getattr(torch, dtype)).named_parameters()

        return ModuleRunner(
            model, lambda batch: run(model, batch), partial(run_backward, model), trainer=partial(trainer, model), initial=initial
        )

    def shown(self, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> nn.Module:
        """Return the module with every captured activation as an output."""
        model = self.module(checkpoint, device, dtype)
        return Showing(model, taps(model), lambda batch: untapped(model, batch))

    def tokenizer(self, vocabulary: Sequence[str], *, lower_case: bool, strip_accents: bool | None) -> Reader:
        """Return a reader that uses `transformers`' BertTokenizer with this vocabulary."""
        made = tokenizer_of(vocabulary, do_lower_case=lower_case, strip_accents=strip_accents)

        def read(text: str) -> tuple[list[int], list[tuple[int, int]]]:
            found = made(text, add_special_tokens=False, return_offsets_mapping=True)
            return found["input_ids"], found["offset_mapping"]

        return read

    def module(self, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> BertWithHeads:
        """Return the module in evaluation mode."""
        return self.build(checkpoint).to(device=device, dtype=getattr(torch, dtype)).eval()

    def untrained(self, a: Architecture) -> BertWithHeads:
        """Return the module before training, initialized by transformers; the decoder is tied to the word embeddings."""
        model = _with_heads(a, _config(a, self.attention))
        bert: Any = model["bert"]
        for name, module in model.named_modules():
            if not name.startswith("bert") and not name.endswith("decoder"):
                bert._init_weights(module)
        return model

    def build(self, checkpoint: Checkpoint) -> BertWithHeads:
        """Return the module in float64, with the checkpoint's parameters loaded strictly."""
        a = checkpoint.architecture
        with without_initialization():
            model = _with_heads(a, _config(a, self.attention)).to(torch.float64)
        state = checkpoint.state_dict("float64")
        if "masked_lm" in a.heads:
            state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
            state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
        if a.has_relative_positions:  # the table exists but is not used
            state["bert.embeddings.position_embeddings.weight"] = torch.zeros(a.max_position_embeddings, a.hidden_size)
        model.load_state_dict(state, strict=True)
        return model


def _config(a: Architecture, attention: str) -> Any:
    from transformers import BertConfig

    ours = (
        *("heads", "pooler", "embedding_norm", "shared_layer_norm", "position_offset", "activation_dropout"),
        *("pooling", "dense", "normalize"),
    )
    theirs = {k: v for k, v in a.as_dict().items() if k not in ours}
    theirs["pruned_heads"] = {layer: list(heads) for layer, heads in a.pruned_heads}
    return BertConfig(**theirs, attn_implementation=attention)


def _with_heads(a: Architecture, config: Any) -> BertWithHeads:
    from transformers import BertModel
    from transformers.models.bert.modeling_bert import BertLMPredictionHead

    parts: dict[str, nn.Module] = {"bert": BertModel(config, add_pooling_layer=a.pooler)}
    heads: dict[str, nn.Module] = {}
    if "masked_lm" in a.heads:
        heads["predictions"] = _tied(BertLMPredictionHead(config), parts["bert"])
    if "next_sentence" in a.heads:
        heads["seq_relationship"] = nn.Linear(a.hidden_size, 2)
    if heads:
        parts["cls"] = nn.ModuleDict(heads)
    if {"classification", "token_classification", "multiple_choice"} & set(a.heads):
        classes = 1 if "multiple_choice" in a.heads else a.num_labels
        rate = config.classifier_dropout if config.classifier_dropout is not None else config.hidden_dropout_prob
        parts["dropout"], parts["classifier"] = nn.Dropout(rate), nn.Linear(a.hidden_size, classes)
    if "question_answering" in a.heads:
        parts["qa_outputs"] = nn.Linear(a.hidden_size, 2)
    if a.dense:
        parts["sentence_embedding"] = nn.ModuleDict({"dense": dense_layers(a)})
    model = BertWithHeads(parts)
    model.of_tokens, model.pooling, model.normalize = "token_classification" in a.heads, a.pooling, a.normalize
    return model


def _tied(head: Any, bert: Any) -> nn.Module:
    """Tie the masked-LM head's decoder to the word embeddings and to the head's bias, as BertForMaskedLM does; return the head."""
    head.decoder.weight, head.decoder.bias = bert.embeddings.word_embeddings.weight, head.bias
    return head


def taps(model: nn.Module) -> dict[str, Tap]:
    """Return where each activation is captured: at the module of its name, or elsewhere if it has no module.

    Probabilities returned by transformers are those after dropout, which in evaluation mode equal the probabilities.
    """
    leaves = (
        "embeddings",
        "LayerNorm",
        "dense",
        "query",
        "key",
        "value",
        "activation",
        "act_fn",
        "decoder",
        "seq_relationship",
        "classifier",
        "qa_outputs",
    )
    config: Any = model.get_submodule("bert").config
    dropouts = ["output.dropout", "embeddings.dropout", *(["dropout"] if config.classifier_dropout else [])]
    found: dict[str, Tap] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList):  # a ModuleList is never called, whatever its name
            continue
        name = path.removeprefix("bert.")
        last = name.rsplit(".", 1)[-1]
        if (last.endswith(leaves) and name != "embeddings") or name.endswith(tuple(dropouts)):
            found[name] = Tap(path)
        elif name.endswith("attention.self"):
            found[f"{name}.dropout" if model.training else f"{name}.probs"] = Tap(path, "output", 1)
        if name.endswith("attention.output.dense"):
            found[f"{name.removesuffix('output.dense')}self.context"] = Tap(path, "input")
    return found


def run(model: nn.Module, batch: TorchBatch) -> Iterator[tuple[str, Tensor]]:
    """Yield the activations of a forward pass, and the losses for the labels in the batch."""
    return captured(model, taps(model), lambda: untapped(model, batch))


def run_backward(model: nn.Module, batch: TorchBatch, source: str, gradient: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the activations of a forward and backward pass, and the gradients with respect to activations and parameters."""
    config: Any = model.get_submodule("bert").config
    relative = getattr(config, "position_embedding_type", "absolute") != "absolute"
    unread = {"bert.embeddings.position_embeddings.weight"} if relative else set()
    return captured_with_gradients(
        model, taps(model), lambda: untapped(model, batch), source, gradient,
        parameters=lambda named: ((name, tensor) for name, tensor in named if name not in unread),
    )  # fmt: skip


def trainer(model: nn.Module, training: Training) -> Callable[[TorchBatch], Iterator[tuple[str, Tensor]]]:
    """Return transformers' Trainer loop: torch's AdamW, its groups for weight decay, gradient clipping, and a scheduler."""
    from transformers import get_inverse_sqrt_schedule, get_linear_schedule_with_warmup
    from transformers.trainer_pt_utils import get_parameter_names

    if training.lr_scheduler_type == "bert" or not training.bias_correction:
        raise Unsupported("torch's AdamW corrects its moments, and transformers has no schedule that declines from the first step")
    decayed = set(get_parameter_names(model, [nn.LayerNorm], ["bias"]))
    groups = [
        {"params": [p for name, p in model.named_parameters() if (name in decayed) is decays], "weight_decay": weight}
        for decays, weight in ((True, training.weight_decay), (False, 0.0))
    ]
    betas = (training.adam_beta1, training.adam_beta2)
    optimizer = torch.optim.AdamW(groups, lr=training.learning_rate, betas=betas, eps=training.adam_epsilon)
    if training.lr_scheduler_type == "linear":
        scheduler = get_linear_schedule_with_warmup(optimizer, training.warmup_steps, training.max_steps)
    else:
        scheduler = get_inverse_sqrt_schedule(optimizer, training.warmup_steps)

    def step(batch: TorchBatch) -> None:
        model.train()
        _, found = _logits_and_losses(model, batch)
        optimizer.zero_grad()
        inner = {name for total, names in _SUMS.items() if total in found for name in names}
        torch.stack([loss for name, loss in found.items() if name not in inner]).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
        optimizer.step()
        scheduler.step()

    return lambda batch: captured_step(model, partial(step, batch))


def _logits(model: nn.Module, batch: TorchBatch) -> dict[str, Tensor]:
    names = ("position_ids", "encoder_hidden_states", "encoder_attention_mask")
    further = {name: value for name in names if (value := getattr(batch, name)) is not None}
    if "encoder_hidden_states" in further:
        further["encoder_hidden_states"] = further["encoder_hidden_states"].to(next(model.parameters()).dtype)
    found: dict[str, Tensor] = model(batch.input_ids, batch.attention_mask, batch.token_type_ids, **further)
    return found


def _logits_and_losses(model: nn.Module, batch: TorchBatch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    logits, config = _logits(model, batch), cast(Any, model.get_submodule("bert").config)
    return logits, losses(logits, batch, config.problem_type)


def untapped(model: nn.Module, batch: TorchBatch) -> dict[str, Tensor]:
    """Return the activations that are not the output of a module: the sentence embedding and the losses."""
    logits, found = _logits_and_losses(model, batch)
    return {**{name: x for name, x in logits.items() if name.startswith("sentence_embedding")}, **found}


class Compiled(HuggingFace):
    """The model run through `torch.compile`; only its outputs are captured, since its kernels hide interior activations."""

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Return why the architecture is not supported; a C++ compiler is required as well."""
        reason = super().supports(architecture, device, dtype)
        if reason is not None:
            return reason
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except Exception:
            return "torch.compile needs a C++ compiler"
        return None

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> ModuleRunner:
        """Return a runner for the compiled model, which is compiled at the first call for every batch size and length."""
        module = self.module(checkpoint, device, dtype)
        model: Any = torch.compile(module, dynamic=True)

        def forward(batch: TorchBatch) -> dict[str, Tensor]:
            logits, found = _logits_and_losses(model, batch)
            return {**logits, **found}

        def runner(batch: TorchBatch) -> Iterator[tuple[str, Tensor]]:
            with torch.no_grad():
                return iter(forward(batch).items())

        def gradients(batch: TorchBatch, source: str, gradient: Tensor) -> Iterator[tuple[str, Tensor]]:
            return captured_with_gradients(module, {}, lambda: forward(batch), source, gradient)

        return ModuleRunner(module, runner, gradients)


hf_eager = HuggingFace("eager")
hf_sdpa = HuggingFace("sdpa")
hf_compiled = Compiled("sdpa", "hf-compiled")
