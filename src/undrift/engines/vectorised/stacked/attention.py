"""`nn.MultiheadAttention` and `nn.TransformerEncoder` for many clients at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from undrift.engines.vectorised.stacked.functions import Function
from undrift.engines.vectorised.stacked.layers import Dropout, Layer, Linear, ReLU, Residual
from undrift.engines.vectorised.stacked.normalising import LayerNorm
from undrift.nets.modes import stays_in_eval


def self_attention(
    module: nn.MultiheadAttention, numbers: Mapping[str, int], path: str = ""
) -> list[Layer] | str:
    """The stacked layers of attention between the tokens of a sample, or what prevents them.

    `numbers` has the numbers of the parameters among all, by `path` and their names.
    """
    if not module.batch_first:
        return "has the samples in the second axis (batch_first=False)"
    if not module._qkv_same_embed_dim or module.bias_k is not None or module.add_zero_attn:
        return "has keys and values of its own"
    if module.dropout and not stays_in_eval(module):
        return "has dropout of its weights"
    heads = module.num_heads

    def attention(x: Tensor) -> Tensor:
        # [B, T, 3E] to [3, B, heads, T, E/heads]
        q, k, v = x.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    return [
        Linear(numbers[path + "in_proj_weight"], numbers.get(path + "in_proj_bias")),
        Function(attention),
        Linear(numbers[path + "out_proj.weight"], numbers.get(path + "out_proj.bias")),
    ]


def encoder_layer(
    module: nn.TransformerEncoderLayer, numbers: Mapping[str, int], path: str = ""
) -> list[Layer] | str:
    """The stacked layers of one layer of a transformer's encoder, or what prevents them."""

    def linear(name: str) -> Linear:
        return Linear(numbers[f"{path}{name}.weight"], numbers.get(f"{path}{name}.bias"))

    def dropout(own: nn.Dropout) -> list[Layer]:
        return [Dropout(own.p)] if own.p > 0 and not stays_in_eval(own) else []

    activation = _activation(module.activation)
    if activation is None:
        return "has an activation other than ReLU and GELU"
    attention = self_attention(module.self_attn, numbers, f"{path}self_attn.")
    if isinstance(attention, str):
        return f"{attention} (of self_attn)"
    attention = [*attention, *dropout(module.dropout1)]
    dense = [
        *(linear("linear1"), activation, *dropout(module.dropout)),
        *(linear("linear2"), *dropout(module.dropout2)),
    ]
    first, second = (
        layer_norm(each, numbers, f"{path}{name}.")
        for name, each in (("norm1", module.norm1), ("norm2", module.norm2))
    )
    if module.norm_first:
        return [Residual([], [first, *attention]), Residual([], [second, *dense])]
    return [Residual([], attention), first, Residual([], dense), second]


def encoder(module: nn.TransformerEncoder, numbers: Mapping[str, int]) -> list[Layer] | str:
    """The stacked layers of a transformer's encoder, or what prevents them."""
    found: list[Layer] = []
    for place, each in enumerate(module.layers):
        if type(each) is not nn.TransformerEncoderLayer:
            return "has layers of another kind"
        layers = encoder_layer(each, numbers, f"layers.{place}.")
        if isinstance(layers, str):
            return layers
        found += layers
    if isinstance(module.norm, nn.LayerNorm):
        found.append(layer_norm(module.norm, numbers, "norm."))
    elif module.norm is not None:
        return "has a norm other than LayerNorm"
    return found


def layer_norm(module: nn.LayerNorm, numbers: Mapping[str, int], path: str) -> LayerNorm:
    """The stacked layer of a LayerNorm inside of another module."""
    weight, bias = (numbers.get(path + name) for name in ("weight", "bias"))
    return LayerNorm(module.normalized_shape, module.eps, weight, bias)


def _activation(given: object) -> Layer | None:
    if given is F.relu or type(given) is nn.ReLU:
        return ReLU()
    if given is F.gelu or (type(given) is nn.GELU and given.approximate == "none"):
        return Function(F.gelu)
    return None


def attends_to_itself(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether a call of `nn.MultiheadAttention` is of one tensor, without masks."""
    options = dict(zip(("query", "key", "value", "key_padding_mask"), args, strict=False))
    options |= kwargs
    same = options.get("query") is options.get("key") is options.get("value")
    harmless = {"query", "key", "value", "need_weights", "average_attn_weights"}
    masked = any(value for name, value in options.items() if name not in harmless)
    return same and not masked and len(args) <= 3
