"""The part of attn that runs inside a program started by `attn record`."""
