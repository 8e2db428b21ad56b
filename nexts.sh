export COLUMNS=80
A="nice /work/wt/look/.venv/bin/attn"
while IFS= read -r c; do
  line=$(eval "$A $c" 2>/dev/null | sed -n '/^Next, with/,/^$/p' | tr '\n' ' ')
  steps=${line#*: }
  echo "### attn $c => $steps"
  cmd=${c%% *}
  IFS='|' read -ra S <<< "$steps"
  for s in "${S[@]}"; do
    s=$(echo "$s" | xargs -0 echo); case "$s" in *FOLDER*|*FILE*) continue;; esac
    s=${s/TEXT/a}; s=${s/NAME/entropy}
    out=$(eval "$A $c $s" 2>&1); rc=$?; [ $rc -ne 0 ] && echo "   APPENDED [$s] rc $rc: $(echo "$out"|tail -2)"
  done
done <<'L'
heads
heads abcabc
heads abcabc --from a --to b
heads abcabc --pattern induction
heads abcabc --statistic entropy
heads abcabc --table
heads --texts short.txt
heads --texts short.txt --skip-sink 1
ablate abcabc
ablate abcabc --answer c
ablate abcabc --heads 1:1,1:2 --jointly
ablate --method swap abcabcab --other abdabdab --answer c --against d
ablate abcabc --approximate
why abcabcab
why abcabcab --head 1:1
circuit abcabcab
circuit abcabcab --head 1:1
circuit --weights
generate abcabc
cache abcabcabc
cache abcabcabc --budget 0.3
cross ab --context cd
multihead abc
average
norm
pitfalls
scale-demo
self the_cat
self abc --causal
separate
show n.json
diff n.json old.json
results runs.db
show j.json
why --texts ans.jsonl
ablate --texts short.txt
L
