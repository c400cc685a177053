# SPDX-License-Identifier: Apache-2.0
# Rows for the demo, the same on every machine:
#   awk -v kind=base -v rows=60000 -f make_rows.awk words.txt > base.jsonl    invented words in a short notation: the rows from which the tiny model was trained
#   awk -v kind=train -f make_rows.awk words.txt > train.jsonl                questions about real words in plain English: the rows of the demo
#   awk -v kind=test  -f make_rows.awk words.txt > test.jsonl                 the same questions about words that are in neither
#   awk -v kind=pairs -f make_rows.awk words.txt > pairs.jsonl                the training questions with a right answer and a wrong one each
#   awk -v kind=test_pairs -f make_rows.awk words.txt > test_pairs.jsonl      the same for the test questions
function random(n) { state = (state * 16807) % 2147483647; return state % n }
function reversed(w,  i, out) { out = ""; for (i = length(w); i > 0; i--) out = out substr(w, i, 1); return out }
function answer(task, w) {
    if (task == 0) return reversed(w)
    if (task == 1) return toupper(w)
    if (task == 2) return substr(w, 1, 1)
    if (task == 3) return substr(w, length(w), 1)
    return length(w)
}
function invented(  i, n, out) {
    n = 1 + random(3); out = ""
    for (i = 0; i < n; i++) {
        if (random(5) > 0) out = out substr("bcdfghjklmnpqrstvwxyz", 1 + random(21), 1)
        out = out substr("aeiou", 1 + random(5), 1)
        if (random(3) == 0) out = out substr("bcdfghjklmnpqrstvwxyz", 1 + random(21), 1)
    }
    return length(out) < 2 ? out substr("nrst", 1 + random(4), 1) : out
}
function padding(  i, n, out) {
    n = random(2); out = ""
    for (i = 0; i < n; i++) out = out (random(4) ? invented() : toupper(invented())) (random(6) ? " " : ". ")
    return out
}
function question(task, form, w) {
    w = "'" w "'"
    if (task == 0) return form == 0 ? "Spell " w " backwards." : "What is " w " in reverse?"
    if (task == 1) return form == 0 ? "Write " w " in capital letters." : "Please shout " w "."
    if (task == 2) return form == 0 ? "What is the first letter of " w "?" : "How does " w " begin?"
    if (task == 3) return form == 0 ? "What is the last letter of " w "?" : "How does " w " end?"
    return form == 0 ? "How many letters are in " w "?" : "How long is the word " w "?"
}
function notation(task, w,  mark) {
    mark = substr("<^[]#", 1 + task, 1) " "
    w = "'" w "' "
    return random(2) ? padding() mark padding() w padding() "=" : padding() w padding() mark padding() "="
}
function slip(right,  i) { # a letter left out, doubled or changed; a number off by one
    if (right + 0 > 0) return right + (random(2) ? 1 : -1)
    i = 1 + random(length(right))
    if (length(right) > 1 && random(3) == 0) return substr(right, 1, i - 1) substr(right, i + 1)
    if (random(2)) return substr(right, 1, i) substr(right, i)
    return substr(right, 1, i - 1) substr("aeiounrst", 1 + random(9), 1) substr(right, i + 1)
}
function wrong(task, w,  right, out) { # as often the answer to another question about the word as a slip
    right = answer(task, w) ""
    do out = (random(2) ? answer((task + 1 + random(4)) % 5, w) : slip(right)) ""
    while (out == right)
    return out
}
function pair(prompt, chosen, rejected) { printf "{\"prompt\": \"%s\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", prompt, chosen, rejected }
function row(prompt, completion) { printf "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", prompt, completion }
BEGIN { state = 20251; for (i = 0; i < 10; i++) random(2) }
{ for (i = 1; i <= NF; i++) words[n++] = $i }
END {
    if (kind == "base")
        for (i = 0; i < rows; i++) { w = invented(); task = random(5); row(notation(task, w), answer(task, w)) }
    else
        for (i = 0; i < n; i++) {
            held_out = i % 5 == 4
            if ((kind ~ /^test/) != held_out) continue
            for (task = 0; task < 5; task++)
                for (form = 0; form < 2; form++) {
                    if (kind ~ /^test/ && form != (i + task) % 2) continue
                    if (kind ~ /pairs$/) pair(question(task, form, words[i]), answer(task, words[i]), wrong(task, words[i]))
                    else row(question(task, form, words[i]), answer(task, words[i]))
                }
        }
}
