#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Trains three curves of ../shared/golden/sft with the program and prints them beside those of the reference library (PEFT and torch, in double):
#   tests/sft/golden_sft.sh [TUNE]       exit code 0: every loss and gradient norm within 1e-5 relative, every learning rate equal to 12 digits
set -u
tune=${1:-./tune}
golden=${GOLDEN:-../shared/golden}
[ -f "$golden/sft/batches.json" ] || { echo "skipped: $golden/sft is not there"; exit 0; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# batches.json holds one row after the other on its "rows" line, and "steps" as row numbers: written out in the order of training.
awk '/^"rows"/ { n = split($0, part, /\{"input_ids"/); for (i = 2; i <= n; i++) { row = part[i]; sub(/\}[^}]*$/, "}", row); rows[i - 2] = "{\"input_ids\"" row } }
     /^"steps"/ { gsub(/[^0-9]+/, " "); m = split($0, number, " "); for (i = 1; i <= m; i++) print rows[number[i]] }' "$golden/sft/batches.json" >"$work/rows.jsonl"

curve() { # NAME SETTINGS...
    name=$1
    shift
    "$tune" sft --quiet output="$work/$name" model.path="$golden/models/llama" model.compute=f32 data.train="$work/rows.jsonl" data.shuffle=false \
        train.batch_size=2 train.gradient_accumulation_steps=2 train.weight_decay=0.01 "$@" || exit 1
    echo "$name: step, loss here, loss there, gradient norm here, gradient norm there, learning rate"
    sed 's/.*"loss": *\([^,]*\),.*"grad_norm": *\([^,]*\), *"learning_rate": *\([^,]*\),.*/\1 \2 \3/' "$work/$name/metrics.jsonl" >"$work/ours"
    grep -o '"step": [^}]*' "$golden/sft/$name/expected.json" | sed 's/.*"loss": \([^,]*\), .*"grad_norm": \([^,]*\), "lr": \([^,]*\).*/\1 \2 \3/' >"$work/theirs"
    paste -d ' ' "$work/ours" "$work/theirs" | awk '
        function off(a, b) { d = a - b; if (d < 0) d = -d; return b != 0 ? d / b : d }
        NF != 6 { print "line " NR " is not whole: " $0; bad = 1; next }
        { printf "%3d  %.9f  %.9f  %.9f  %.9f  %.12g\n", NR, $1, $4, $2, $5, $3
          if (off($1, $4) > loss) loss = off($1, $4)
          if (off($2, $5) > norm) norm = off($2, $5)
          if (off($3, $6) > rate) rate = off($3, $6) }
        END { printf "     largest relative difference: loss %.1e, gradient norm %.1e, learning rate %.1e\n", loss, norm, rate
              exit bad || NR == 0 || loss > 1e-5 || norm > 1e-5 || rate > 1e-12 }' || failed=1
}

failed=0
curve lora model.adapter="$golden/sft/lora/initial" train.learning_rate=0.01 train.warmup_steps=3 train.max_steps=20 lora.lr_ratio=1
curve lora-plus model.adapter="$golden/sft/lora-plus/initial" train.learning_rate=0.001 train.warmup_steps=3 train.max_steps=20 lora.lr_ratio=16
curve full train.learning_rate=0.001 train.warmup_steps=2 train.max_steps=10
exit $failed
