"""What runs inside a program that `attn record` started."""
