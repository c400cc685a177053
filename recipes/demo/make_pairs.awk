# SPDX-License-Identifier: Apache-2.0
# Pairs of a right answer and a wrong one that the model gave by itself:
#   tune generate MODEL --input train.jsonl -n 2 --temperature 1 -o samples.jsonl
#   awk -v n=2 -f make_pairs.awk train.jsonl samples.jsonl > pairs.jsonl
# Texts are copied as JSON has them, so nothing has to be unescaped.
function part(line, key, end,  at) { # the text behind "key": " up to what ends it
    at = index(line, "\"" key "\": \"")
    line = substr(line, at + length(key) + 5)
    return substr(line, 1, index(line, end) - 1)
}
NR == FNR { prompt[NR] = part($0, "prompt", "\", \"completion\""); right[NR] = part($0, "completion", "\"}"); next }
{
    row = 1 + int((FNR - 1) / n)
    got = part($0, "completion", "\", \"completion_ids\"")
    if (got != "" && got != right[row]) printf "{\"prompt\": \"%s\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", prompt[row], right[row], got
}
