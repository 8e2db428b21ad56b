"""`attention_statistics` of a caller's own tensors, without a model."""

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
    """softmax(scale query key^T) value, and what its weights are like, without the matrix of weights.

    The leading axes of key and value equal those of query or are 1; the last of them, the heads, may
    also be a divisor (grouped-query attention: query head h uses key head h * num_kv_heads // num_heads)
    and is not expanded. query is (*batch, query, dim), key (*batch, key, dim), value (*batch, key, value_dim)
    or None. What the numbers mean is said in `AttentionStatistics`.

    Query i stands at position t = i. With causal it stands at t = i + num_keys - num_queries: with more keys
    than queries the last query stands at the last key, with fewer the first ones stand before all keys.

    - causal: a query sees keys j <= t.
    - window: a query sees keys with |t - j| < window, so with causal the last `window` keys (Mistral).
    - key_mask: True = may be attended; of shape (key,) or any that broadcasts to (*batch, key), as
      (batch, 1, key) does for padding.
    - softcap: scores become softcap tanh(score / softcap) (Gemma 2, arXiv:2408.00118).
    - sink: a logit that joins the denominator alone, so rows sum to less than one (GPT-OSS); of any shape
      that broadcasts to the batch, as (head,) does.
    - scale: 1/sqrt(dim) by default. top_k: how many of the largest weights to name for each query.
    - keys: also the mass that each key receives; pooled: also maps of at most pooled x pooled blocks. Either
      needs a second pass. progress: called in this thread with the fraction of the blocks that are done.

    float64 is computed as float64, all else as float32 with sums across tiles in float64. On the CPU,
    torch.get_num_threads() threads share the work, on which no result depends; other threads keep theirs.

    WrongArgument, a UserError and a ValueError, which names the argument, for shapes that do not fit, NaN or
    infinite entries, and settings out of range. Sources: Rabe and Staats, arXiv:2112.05682; FlashAttention,
    arXiv:2205.14135.
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
    """WrongArgument for each ValueError, in its words."""
    try:
        yield
    except ValueError as error:
        raise WrongArgument(str(error)) from None
