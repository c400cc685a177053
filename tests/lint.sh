#!/bin/sh
# Rules of the house that a machine can check. Says each offence and fails when there is one.
#   tests/lint.sh layers | headers COMPILER-FLAGS... | quiet LIBRARY
set -u
rule=$1
shift
tree() { find lib data sft rl cmd -name "$1" 2>/dev/null | sort; }

# A folder's rank: a file includes its own folder or one of lower rank. sft and rl have the same rank, so neither sees the other.
check_layers() {
    tree '*.[ch]' | xargs awk '
        function folder(path, parts) { split(path, parts, "/"); return parts[1] == "lib" ? parts[2] : parts[1] }
        BEGIN { split("base tensor text nn model infer train data sft cmd", order); for (i in order) rank[order[i]] = i + 0
                rank["rl"] = rank["sft"] }
        /^[ \t]*#[ \t]*include[ \t]*"/ {
            split($0, quoted, "\""); from = folder(FILENAME); to = folder(quoted[2])
            if (quoted[2] !~ /\//) { bad = 1; print FILENAME ":" FNR ": include \"" quoted[2] "\" by its full path from the root" }
            else if (!(to in rank)) { bad = 1; print FILENAME ":" FNR ": unknown folder in \"" quoted[2] "\"" }
            else if (from != to && (rank[to] >= rank[from] || (from == "text" && to == "tensor"))) {
                bad = 1; print FILENAME ":" FNR ": " from " must not include " to }
        }
        END { exit bad }'
}

# Documents that sources speak of and that are not here on purpose: of the golden values, of parquet-format, of LLaMA-Factory; what `tune data synth` writes.
elsewhere='golden/README.md Encodings.md LogicalTypes.md data/README.md dataset_card.md'

# A document that a source cites is in the tree, so whoever reads the comment can read on.
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

# Lines are read in a window: 150 bytes, as .clang-format has it, but where a text would have to be cut.
check_length() {
    { tree '*.[ch]'; find tests -name '*.[ch]'; } | xargs awk 'length($0) > 150 && $0 !~ /"/ { bad = 1; print FILENAME ":" FNR ": " length($0) " bytes long: clang-format -i --lines=" FNR ":" FNR " " FILENAME }
        END { exit bad }'
}

# A file that includes a header of the system uses something of it, outside of comments and texts. Looked at are the headers whose words are here; what a
# macro of ours uses counts where that is defined.
check_used() {
    { tree '*.[ch]'; find tests -name '*.[ch]'; } | xargs awk '
        BEGIN { words["string.h"] = "mem(cpy|move|set|cmp|chr|mem|rchr)|strn?(len|cpy|cat|cmp|dup)|str(r?chr|chrnul|(case)?str|c?spn|pbrk|tok(_r)?|sep|error(_r)?|coll)|stpcpy"
                words["strings.h"] = "strn?casecmp|ffsl?l?"
                words["ctype.h"] = "is(alnum|alpha|x?digit|space|upper|lower|punct|print|cntrl|graph|blank)|to(upper|lower)"
                words["math.h"] = "NAN|INFINITY|HUGE_VAL|M_[A-Z0-9_]+|is(nan|inf|finite|normal)|signbit|(fabs|fmin|fmax|fma|fmod|modf|sqrt|cbrt|hypot|pow|exp|exp2|expm1|log|log2|log10|log1p|floor|ceil|round|rint|nearbyint|trunc|l?lround|l?lrint|sin|cos|tan|asin|acos|atan|atan2|sinh|cosh|tanh|atanh|erfc?|[lt]gamma|ldexp|frexp|scalbn|ilogb|copysign|nextafter|remainder)f?"
                words["stdlib.h"] = "[mc]alloc|realloc(array)?|free|exit|_Exit|abort|atexit|(secure_)?getenv|(un)?setenv|putenv|strto(d|f|ld|u?ll?)|ato(i|l|ll|f)|qsort(_r)?|bsearch|s?rand(om)?|l?l?abs|mk[sd]?temps?|mkdtemp|realpath|system|aligned_alloc|posix_memalign|EXIT_[A-Z]+|getloadavg|posix_openpt|ptsname|grantpt|unlockpt"
                words["stdio.h"] = "v?(f|s|sn|d|as)?printf|FILE|EOF|SEEK_[A-Z]+|BUFSIZ|std(in|out|err)|f(open|dopen|reopen|close|read|write|gets|puts|putc|getc|flush|seeko?|tello?|ileno)|fileno|feof|ferror|clearerr|[gp]etc|putc|puts|putchar|getchar|ungetc|getline|getdelim|rewind|setv?buf|setlinebuf|[fs]?scanf|perror|remove|rename(at2?)?|p(open|close)|tmpfile|open_memstream|fmemopen"
                words["omp.h"] = "omp_[a-z_]+"; words["xxhash.h"] = "XXH[A-Za-z0-9_]+"; words["errno.h"] = "errno|E[A-Z0-9]+" }
        function tell(header) { for (header in open) { bad = 1; print open[header] ": nothing of <" header "> is used" }; split("", open) }
        FNR == 1 { tell(); inside = 0 }
        /^#include </ { header = $2; gsub(/[<>]/, "", header); if (header in words) open[header] = FILENAME ":" FNR; next }
        { if (inside) { if (!sub(/^.*\*\//, "")) next; inside = 0 }
          gsub(/\047\\?.\047/, ""); gsub(/"([^"\\]|\\.)*"/, ""); gsub(/\/\*([^*]|\*+[^*\/])*\*+\//, "")
          if (sub(/\/\*.*/, "")) inside = 1
          for (header in open) if ($0 ~ "(^|[^A-Za-z0-9_])(" words[header] ")([^A-Za-z0-9_]|$)") delete open[header] }
        END { tell(); exit bad }'
}

check_headers() {
    bad=0
    for header in $(tree '*.h') $(find tests -name '*.h'); do
        ${CC:-cc} "$@" -DISA=base -Wno-unused-macros -fsyntax-only -x c -include "$header" /dev/null || { echo "$header does not compile alone"; bad=1; }
    done
    return $bad
}

# The library returns a Status; it does not print, exit, read the environment or keep hidden state. assert.o ends our own mistakes.
check_quiet() {
    nm -A -u "$1" | awk '
        BEGIN { split("abort exit _exit _Exit quick_exit printf vprintf fprintf vfprintf puts putchar perror stdout stderr stdin rand srand random " \
                      "srandom drand48 getenv secure_getenv setenv putenv strcpy strcat sprintf vsprintf strtok gets system __assert_fail " \
                      "__printf_chk __fprintf_chk __sprintf_chk", words, " "); for (i in words) banned[words[i]] = 1 }
        { symbol = $NF; sub(/@.*/, "", symbol); if (symbol in banned && $0 !~ /[:\/(]assert\.o/) { bad = 1; print $0 } }
        END { exit bad }'
}

case $rule in
layers) # all are said before it fails
    check_layers
    layered=$?
    check_cited
    cited=$?
    check_length && [ $layered = 0 ] && [ $cited = 0 ] && echo "$rule: fine" ;;
headers)
    check_used
    used=$?
    check_headers "$@" && [ $used = 0 ] && echo "$rule: fine" ;;
quiet) check_quiet "$@" && echo "$rule: fine" ;;
*) echo "usage: tests/lint.sh layers | headers FLAGS | quiet LIBRARY" >&2; exit 2 ;;
esac
