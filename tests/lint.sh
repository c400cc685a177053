#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the project's rules. Prints each violation, and fails if there is one.
#   tests/lint.sh layers | docs [PAGE...] | headers COMPILER-FLAGS... | quiet LIBRARY | format FILE...
set -u
rule=$1
shift
tree() { find lib data sft rl cmd -name "$1" 2>/dev/null | sort; }

# A file may include files of its own folder or of a folder of lower rank. sft and rl have the same rank, so neither may include the other. Within data,
# rl and cmd, the folders are ranked in the order of their lines here: each may include those before it.
check_layers() {
    tree '*.[ch]' | xargs awk '
        function folder(path, parts) { split(path, parts, "/"); return parts[1] == "lib" ? parts[2] : parts[1] }
        function inner(path) { sub(/\/[^\/]*$/, "", path); return path }
        function refuse(what) { bad = 1; print FILENAME ":" FNR ": " what }
        BEGIN { split("base plan http child comm tensor text grammar nn parallel model infer deploy recipe run data serve train sft cmd", order); for (i in order) rank[order[i]] = i + 0
                rank["rl"] = rank["sft"]
                n = split("data data/containers data/formats data/filter data/dataset data/check data/synth " \
                          "rl/core rl/mdp rl/env rl/common rl/reward rl/pairs rl/learn rl/text rl/offline rl/keys " \
                          "cmd/app cmd/common cmd/about cmd/train cmd/model cmd/data cmd/mdp cmd/bench", order)
                for (i = 1; i <= n; i++) { rank_inside[order[i]] = i; ordered[folder(order[i])] = 1 } }
        /^[ \t]*#[ \t]*include[ \t]*"/ {
            split($0, quoted, "\""); from = folder(FILENAME); to = folder(quoted[2]); room = inner(FILENAME); other = inner(quoted[2])
            if (quoted[2] !~ /\//) refuse("include \"" quoted[2] "\" by its full path from the root")
            else if (!(to in rank)) refuse("unknown folder in \"" quoted[2] "\"")
            else if (from != to && (rank[to] >= rank[from] || (from == "text" && to == "tensor") || (to == "child" && from != "rl") || (from == "recipe" && to != "base"))) refuse(from " must not include " to)
            else if (from == to && from in ordered && room != other) {
                if (!(room in rank_inside)) refuse("folder " room " has no rank in tests/lint.sh")
                else if (!(other in rank_inside) || rank_inside[other] > rank_inside[room]) refuse(room " must not include " other)
            }
        }
        END { exit bad }'
}

# Static functions are not named like POSIX calls or like many others: a debugger, an editor and a linker tell sft_open from dpo_open.
check_statics() {
    tree '*.c' | xargs grep -nE '^static [A-Za-z].*[ *](open|close|run|step|train|keep|look|tell|go|read|write|begin|end|init|free|show|start|stop|load|save|update|reset|add|find|check|parse|take|put|get|set|give|next|list|place)\(' |
        sed 's/$/   needs a prefix of its file or subject/' | grep . && return 1
    return 0
}

# Only lib/tensor knows where the elements of a tensor are, since a device may have memory of its own, and how large one is, since some dtypes have
# blocks.
check_elements() {
    tree '*.[ch]' | grep -v '^lib/tensor/' | xargs grep -nE '(->|\.)elements([^A-Za-z0-9_]|$)|(^|[^A-Za-z0-9_])dtype_size\(' |
        sed 's/$/   needs tensor_upload, tensor_download, dtype_bytes or the like/' | grep . && return 1
    return 0
}

# Commands choose the device, in one place, and hand it down. Planners belong to their device.
check_devices() {
    tree '*.[ch]' | grep -vE '^lib/tensor/|^cmd/common/runtime\.c$' | xargs grep -nE '(^|[^A-Za-z0-9_])device_(cpu|meta|reference)\(' |
        sed 's/$/   needs the device that it gets, or its planner/' | grep . && return 1
    return 0
}

# Documents that sources cite although they are not in the tree: of the golden values, of parquet-format, of LLaMA-Factory, and outputs of `tune data synth`.
elsewhere='golden/README.md Encodings.md LogicalTypes.md data/README.md dataset_card.md'

# Checks that each document that a source cites is in the tree.
check_cited() {
    { tree '*.[ch]'; tree '*.def'; find tests -name '*.[ch]'; } | xargs awk -v elsewhere="$elsewhere" -v here="$(find . -name '*.md' | grep -vE '^\./(build|\.git)/' | tr '\n' ' ')" '
        BEGIN { split(elsewhere, names, " "); for (i in names) known[names[i]] = 1
                n = split(here, paths, " "); for (i = 1; i <= n; i++) { sub(/^\.\//, "", paths[i]); known[paths[i]] = 1; sub(/.*\//, "", paths[i]); known[paths[i]] = 1 } }
        { rest = $0
          while (match(rest, /[A-Za-z0-9_.\/-]*[A-Za-z0-9_-]\.md([^A-Za-z0-9_]|$)/)) {
              name = substr(rest, RSTART, RLENGTH); sub(/[^A-Za-z0-9_]$/, "", name); rest = substr(rest, RSTART + RLENGTH)
              if (!(name in known)) { bad = 1; print FILENAME ":" FNR ": cites " name ", which is not here" }
          } }
        END { exit bad }'
}

# Documents name only commands, recipe keys and source files that exist, and link only to files and headings that exist. Only code is checked: text in backticks or between lines
# of ```, and lines that begin with four spaces; in recipes, comment lines that begin with three spaces. Commands are not checked on a line with the word torchtune,
# since its program is called tune too.
# Words that look like keys: modules of a checkpoint, and the misspelt key of an example.
no_keys='model.layers model.language_model model.text_model model.norm model.embed_tokens train.learning_rat'
check_docs() {
    [ $# -gt 0 ] || set -- $(find README.md CONTRIBUTING.md docs recipes \( -name '*.md' -o -name '*.yaml' \) | sort)
    awk -v no_keys="$no_keys" -v files="$(git ls-files -c -o --exclude-standard 2>/dev/null | tr '\n' ' ') " '
        function fail(text) { bad = 1; print FILENAME ":" FNR ": " text }
        # COMMAND(name, "help"), GROUP(...), DATA_COMMAND(...), KEY(section, name, ...)
        FILENAME ~ /commands\.def$/ && /^[A-Z_]+\(/ {
            split($0, part, /[(,]/); group = FILENAME; sub(/.*\//, "", group); sub(/_?commands\.def$/, "", group)
            commands[group " " part[2]] = 1; if (part[1] == "GROUP") groups[part[2]] = 1 }
        FILENAME ~ /config\.def$/ && /^KEY\(/ { split($0, part, /[(,] */); keys[part[2] "." part[3]] = sections[part[2]] = 1 }
        FILENAME ~ /\.def$/ { next }
        FNR == 1 { fenced = 0; page[FILENAME] = 1; if (!ready++) { n = split(files, part, " "); for (i = 1; i <= n; i++) { here[part[i]] = 1; sub(/.*\//, "", part[i]); named[part[i]] = 1 }
                                             n = split(no_keys, part, " "); for (i = 1; i <= n; i++) keys[part[i]] = 1 } }
        /^ *```/ { fenced = !fenced; next }
        headings { if (/^#+ / && !fenced) { text = tolower($0); sub(/^#+ /, "", text); gsub(/[^a-z0-9_ -]/, "", text); gsub(/ /, "-", text); places[FILENAME "#" text] = 1 }; next }
        {
            if (FILENAME ~ /\.yaml$/) code = /^#   / ? substr($0, 2) : ""
            else if (fenced || /^    /) code = $0
            else { code = ""; n = split($0, part, "`"); for (i = 2; i <= n; i += 2) code = code "\n" part[i] }
            text = /torchtune/ ? "" : code
            while (match(text, /(^|[^A-Za-z0-9_.\/-])(\.\/|\$)?tune +[a-z][a-z_-]*( +[a-z][a-z_-]*)?/)) {
                n = split(substr(text, RSTART, RLENGTH), word, / +/); text = substr(text, RSTART + RLENGTH)
                at = word[1] ~ /tune$/ ? 2 : 3
                if (!(" " word[at] in commands)) fail("no command: tune " word[at])
                else if (word[at] in groups && at + 1 <= n && !(word[at] " " word[at + 1] in commands)) fail("no command: tune " word[at] " " word[at + 1])
            }
            text = code
            while (match(text, /(^|[^A-Za-z0-9_.\/-])[a-z]+\.[a-z][a-z_]*/)) {
                key = substr(text, RSTART, RLENGTH); sub(/^[^a-z]/, "", key); text = substr(text, RSTART + RLENGTH)
                section = key; sub(/\..*/, "", section)
                if (section in sections && !(key in keys) && key !~ /\.(h|c|py|md|def|json|jsonl|yaml|yml|parquet|csv|txt|gguf|safetensors)$/) fail("no recipe key: " key)
            }
            text = FILENAME ~ /\.md$/ ? code : ""
            while (match(text, /[A-Za-z0-9_.\/-]*[A-Za-z0-9_]\.(c|h|def|sh|py|awk|md)([^A-Za-z0-9_]|$)/)) {
                name = substr(text, RSTART, RLENGTH); sub(/[^A-Za-z0-9_]$/, "", name); text = substr(text, RSTART + RLENGTH); sub(/^\.\//, "", name)
                if (name ~ /^(lib|data|sft|rl|cmd|tests|recipes|docs)\// ? !(name in here) : name ~ /^[a-z0-9_]+\.(c|h|def)$/ && FILENAME !~ /lab\// && !(name in named)) fail("no file: " name)
            }
            text = FILENAME ~ /\.md$/ && code != $0 ? $0 : ""
            while (match(text, /\]\([^)]*\)/)) {
                name = substr(text, RSTART + 2, RLENGTH - 3); text = substr(text, RSTART + RLENGTH); at = name; sub(/#.*/, "", name); sub(/^[^#]*/, "", at)
                if (name ~ /^[a-z]+:/) continue
                folder = FILENAME; if (!sub(/\/[^\/]*$/, "/", folder)) folder = ""
                name = name == "" ? FILENAME : folder name; sub(/^\.\//, "", name); while (sub(/[^\/]+\/\.\.\//, "", name)) ;
                if (!(name in here) && !(name in page)) fail("no file: " name)
                else if (at != "" && name in page && !(name at in places)) fail("no heading: " name at)
            }
        }
        END { exit bad }' $(find cmd -name '*commands.def') $(find lib -name config.def) headings=1 "$@" headings=0 "$@"
}

# Lines have at most 150 bytes, as in .clang-format, unless a string would have to be split.
check_length() {
    { tree '*.[ch]'; find tests -name '*.[ch]'; } | xargs awk 'length($0) > 150 && $0 !~ /"|\\$/ { bad = 1; print FILENAME ":" FNR ": " length($0) " bytes long: clang-format -i --lines=" FNR ":" FNR " " FILENAME }
        END { exit bad }'
}

# Each code file names its licence where tools look for it: in the first line, or after the interpreter line.
check_licence() {
    find lib data sft rl cmd tests recipes docs .ci Makefile -type f \( -name '*.[ch]' -o -name '*.def' -o -name '*.sh' -o -name '*.py' \
        -o -name '*.awk' -o -name Makefile -o -path .ci/run \) | sort | xargs awk '
        FNR == 1 { script = /^#!/ }
        FNR == 1 + script {
            words = "SPDX-License-Identifier: Apache-2.0"; line = FILENAME ~ /\.(c|h|def)$/ ? "/* " words " */" : "# " words
            if ($0 != line) { bad = 1; print FILENAME ":" FNR ": the licence is missing: " line }
        }
        END { exit bad }'
}

# Compiles each header alone, several at a time.
check_headers() {
    compile="${CC:-cc} $* -DISA=base -Wno-unused-macros -fsyntax-only"
    export compile
    { tree '*.h'; find tests -name '*.h'; } | xargs -P "$(getconf _NPROCESSORS_ONLN)" -n 1 sh -c '
        $compile -x c -include "$1" /dev/null || { echo "$1 does not compile alone"; exit 1; }' sh
}

# The library returns a Status: it must not print, exit or read the environment. Only assert.o may end the program, on our own mistakes.
check_quiet() {
    nm -A -u "$1" | awk '
        BEGIN { split("abort exit _exit _Exit quick_exit printf vprintf fprintf vfprintf puts putchar perror stdout stderr stdin rand srand random " \
                      "srandom drand48 getenv secure_getenv setenv putenv strcpy strcat sprintf vsprintf strtok gets system __assert_fail " \
                      "__printf_chk __fprintf_chk __sprintf_chk", words, " "); for (i in words) banned[words[i]] = 1 }
        { symbol = $NF; sub(/@.*/, "", symbol); if (symbol in banned && $0 !~ /[:\/(]assert\.o/) { bad = 1; print $0 } }
        END { exit bad }'
}

# Versions of clang-format break lines differently, so only one is accepted.
check_format() {
    case $(clang-format --version 2>/dev/null) in *'version 14.'*) ;; *) echo "format: skipped, clang-format 14 is not here"; exit 0 ;; esac
    printf '%s\n' "$@" | xargs -P "$(getconf _NPROCESSORS_ONLN)" -n 40 clang-format --dry-run --Werror 2>&1 | grep -E 'error:' | cut -d: -f1 | sort | uniq -c |
        awk '{ bad = 1; print $2 ": " $1 " places to format: make format" } END { exit bad }'
}

case $rule in
layers) # prints all violations before it fails
    check_layers
    layered=$?
    check_cited
    cited=$?
    check_licence
    licensed=$?
    check_docs
    documented=$?
    check_statics
    named=$?
    check_elements
    sized=$?
    check_devices
    chosen=$?
    check_length && [ $sized = 0 ] && [ $chosen = 0 ] && [ $layered = 0 ] && [ $named = 0 ] && [ $cited = 0 ] && [ $licensed = 0 ] && [ $documented = 0 ] && echo "$rule: fine" ;;
docs | headers | quiet | format) "check_$rule" "$@" && echo "$rule: fine" ;;
*) echo "usage: tests/lint.sh layers | docs [PAGE] | headers FLAGS | quiet LIBRARY | format FILES" >&2; exit 2 ;;
esac
