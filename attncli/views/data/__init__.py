"""Reports as data for other programs: tables (CSV, Parquet) and arrays (npz, safetensors)."""
