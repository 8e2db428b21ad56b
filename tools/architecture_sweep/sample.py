"""Architectures for `make test`: at least one for each class of behaviour that the sweep has found."""

RIGHT = {
    "bert": "an encoder",
    "gpt2": "a decoder, its projections in one",
    "qwen2": "grouped-query, a window in some layers",
    "gemma2": "softcap, a window in every other layer",
    "gpt_oss": "a sink in the weights",
    "llama4_text": "chunks in some layers",
    "granite_swa": "a sink that eager attention takes off the output",
    "deepseek_v3": "keys and values of different sizes",
    "phimoe": "experts",
    "modernbert": "windows in both directions",
    "t5": "a bias for positions; encoder, decoder, across",
    "bart": "encoder, decoder, across",
    "florence2": "the same inside a model for images",
    "seamless_m4t": "an encoder under another name",
    "mvp": "the same by eager attention",
    "bloom": "ALiBi by eager attention",
    "deberta-v2": "disentangled attention by eager attention",
    "falcon": "masks of another kind once attention is switched",
    "dpr": "a body that has a body of its own",
    "albert": "one module for all layers",
    "longcat_flash": "two attention modules in a layer",
    "openai-gpt": "modules that return lists",
    "xlnet": "no limit of tokens, written as -1",
    "big_bird": "the model changes with the texts it reads",
    "bitnet": "a norm between the heads and W_O",
    "qwen3_next": "a gate between the heads and W_O; no attention in the first layer",
    "jamba": "no attention in the first layer",
    "minimax": "layers whose attention is linear",
    "nllb-moe": "the model looks into the mask",
}
"""These must be right, and nothing of them refused; each with what it stands for."""

RIGHT_OR_REFUSED = {
    "inkling2_text": "an argument of its own: sinks",
    "minimax_m3_vl_text": "a mask for eager attention alone, else an argument: block_indices",
    "diffllama": "two calls in each layer, their difference",
    "hrm_text": "each layer runs several times",
    "deepseek_v32": "the model changes the mask: an index chooses keys",
    "deepseek_v4": "keys that stand for several tokens",
    "t5gemma2": "the decoder's own and the encoder's keys in one",
    "molmo2": "the model takes the mask for a tensor",
    "git": "the model adds the mask itself",
    "bigbird_pegasus": "one stack attends sparsely, the others not",
    "squeezebert": "scores instead of weights",
    "prophetnet": "scores instead of weights, and several queries for a token",
    "longformer": "weights of a band",
    "longt5": "blocks of weights in the encoder",
    "pegasus_x": "weights in two parts in the encoder",
    "funnel": "queries and keys that become fewer",
    "canine": "characters, then blocks of them",
    "blt": "bytes and patches, in four stacks",
    "fastspeech2_conformer": "frames of sound for tokens",
    "reformer": "buckets of keys",
    "mamba": "no attention",
}
"""These may be refused, wholly or in part, but what is shown of them must be right."""

SAMPLE = (*RIGHT, *RIGHT_OR_REFUSED)

SELDOM = {
    *("seamless_m4t", "mvp", "florence2", "nllb-moe", "hrm_text", "deepseek_v4", "molmo2", "bigbird_pegasus"),
    *("fastspeech2_conformer", "blt", "funnel", "longformer", "longt5", "pegasus_x", "prophetnet", "canine"),
    *("jamba", "inkling2_text", "t5gemma2", "bart", "phimoe", "bitnet", "git", "deepseek_v32", "minimax"),
    *("xlnet", "squeezebert", "reformer", "longcat_flash", "dpr", "diffllama", "mamba", "minimax_m3_vl_text"),
    *("openai-gpt", "qwen3_next"),
}
"""These wait for `make nightly`: each takes a second or more, and is refused, or near to another one here."""

LOCAL = ("qwen2", "gemma2", "gpt_oss", "granite_swa", "llama4_text", "modernbert")
"""Tiny models of these must have layers that hide earlier tokens of the texts."""

PREDICTING = {
    "qwen2": ("generate", "ablate", "why"),
    "gpt_oss": ("generate", "ablate", "why"),
    "llama4_text": ("generate", "ablate", "why"),
    "bart": ("generate", "ablate"),
    "bert": ("ablate",),
    "deepseek_v32": ("generate",),
    "qwen4_exp_text": ("generate", "ablate"),
    "csm": ("ablate",),
    "lxmert": (),
}
"""Models with their heads for generate, ablate and why: only these commands are right about them."""

SELDOM_PREDICTING = {"llama4_text", "qwen4_exp_text", "csm", "deepseek_v32"}
"""These wait for `make nightly`: windows and linear layers are also those of others."""
