"""`attention_statistics` for the caller's own tensors, without a model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from torch import Tensor

from attncli.core import attention_statistics as exact
from attncli.records.arguments import Count, PlainNumber, Size, WrongArgument, checked

Factor = Annotated[float, PlainNumber]


@checked
def attention_statistics(
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
    *,
    causal: bool = False,
    key_mask: Tensor | None = None,
    window: Size | None = None,
    softcap: Factor | None = None,
    sink: Tensor | None = None,
    scale: Factor | None = None,
    top_k: Count = 0,
    keys: bool = False,
    pooled: Size | None = None,
    progress: Callable[[float], None] | None = None,
) -> exact.AttentionStatistics:
    """Compute softmax(scale query key^T) value, and statistics of its weights, without the weight matrix.

    query is (*batch, query, dim), key (*batch, key, dim), value (*batch, key, value_dim) or None. The leading
    axes of key and value equal those of query or are 1; the last of these axes, the heads, may also be a
    divisor (grouped-query attention: query head h uses key head h * num_kv_heads // num_heads). See
    `AttentionStatistics` for the meaning of each statistic.

    Query i is at position t = i. With causal, it is at t = i + num_keys - num_queries: the last query is at
    the last key, and if there are fewer keys than queries, the first queries come before all keys.

    - causal: a query sees keys j <= t.
    - window: a query sees keys with |t - j| < window; with causal, these are the last `window` keys
      (Mistral).
    - key_mask: True for keys that may be attended to; its shape is (key,) or any shape that broadcasts to
    (*batch, key), such as (batch, 1, key) for padding.
    - softcap: scores become softcap tanh(score / softcap) (Gemma 2, arXiv:2408.00118).
    - sink: a logit that is added only to the denominator, so that rows sum to less than one (GPT-OSS); its
    shape is any shape that broadcasts to the batch, such as (head,).
    - scale: 1/sqrt(dim) by default. top_k: the number of largest weights to report for each query.
    - keys: compute the mass that each key receives; pooled: compute maps of at most pooled x pooled blocks.
      Each of the two needs a second pass. progress: called in this thread with the share of finished blocks.

    float64 is computed as float64, other types as float32 with sums across tiles in float64. On the CPU,
    torch.get_num_threads() threads share the work; results do not depend on their number.

    Raises WrongArgument (a UserError and a ValueError), which names the argument, for shapes that do not fit,
    NaN or infinite entries, and settings out of range. Sources: Rabe and Staats, arXiv:2112.05682;
    FlashAttention, arXiv:2205.14135.
    """
    with _wrong_arguments():
        return exact.attention_statistics(
            query,
            key,
            value,
            causal=causal,
            key_mask=key_mask,
            window=window,
            softcap=softcap,
            sink=sink,
            scale=scale,
            top_k=top_k,
            keys=keys,
            pooled=pooled,
            progress=progress,
        )


@contextmanager
def _wrong_arguments() -> Iterator[None]:
    """Convert ValueError to WrongArgument with the same message."""
    try:
        yield
    except ValueError as error:
        raise WrongArgument(str(error)) from None
