# SPDX-License-Identifier: Apache-2.0
# Questions on sums of two numbers of two digits, for recipes/rl_sums.yaml: all 8100 pairs in a fixed mixed order, the first 500 of which are kept for the test.
#   awk -v kind=test -f recipes/make_sums.awk > test.jsonl
#   awk -v kind=train -v rows=2000 -f recipes/make_sums.awk > train.jsonl
# Rows: {"messages": [{"role": "user", "content": "What is 47 + 36?"}], "answer": 83}
function random(n) { # 0 .. n - 1; Lehmer's generator, the same numbers in every awk
    state = state * 16807 % 2147483647
    return state % n
}
BEGIN {
    state = 20261121
    for (i = 0; i < 8100; i++) pair[i] = i
    for (i = 8099; i > 0; i--) {
        j = random(i + 1)
        kept = pair[i]
        pair[i] = pair[j]
        pair[j] = kept
    }
    first = kind == "test" ? 0 : 500
    last = kind == "test" ? 500 : rows > 0 ? 500 + rows : 8100
    for (i = first; i < last && i < 8100; i++) {
        a = 10 + int(pair[i] / 90)
        b = 10 + pair[i] % 90
        printf "{\"messages\": [{\"role\": \"user\", \"content\": \"What is %d + %d?\"}], \"answer\": %d}\n", a, b, a + b
    }
}
