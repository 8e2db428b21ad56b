"""First screens of `attn heads`: of one text, of many, examples of one head, syntactic relations."""
