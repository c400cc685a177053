/* SPDX-License-Identifier: Apache-2.0 */
/* tune completion: prints completion scripts for shells, and answers their questions. At every tab a script runs `tune completion words -- WORD ...`
 * and shows the answer. The candidates come from the tables of commands, options and recipe keys.
 *
 * The answer has lines "WORD<tab>help", and lines ":files PREFIX", ":folders PREFIX" or ":recipes PREFIX": there the shell itself completes a path
 * after that prefix of the last word. No space follows a word that ends with = or '.'. */
#include <string.h>

#include "cmd/app/shipped.h"
#include "cmd/app/terminal.h"
#include "cmd/app/help.h"
#include "rl/env/env.h"

/* last: the word at the cursor. prefix: its part that is kept, such as "--compute=" or "model.path=". */
typedef struct Line {
    const char *const *words;
    size_t n;
    const char *last;
    Str prefix;
    bool files, folders, recipes;
    const Command *own;
} Line;

/* ---- answers ---- */

enum { HELP_SHOWN = 64 };

/* Offers `word` if it begins with the last word. help may be NULL. */
static void offer_n(const Line *line, const char *word, size_t len, const char *help) {
    Str whole = {0};
    str_printf(&whole, "%s%.*s", str_text(&line->prefix), (int)len, word);
    if (text_starts_with(str_text(&whole), line->last)) {
        size_t shown = help ? strcspn(help, "\n;") : 0;
        bool cut = shown > HELP_SHOWN;
        if (cut) shown = utf8_whole_prefix(help, HELP_SHOWN);
        print_result("%s%s%.*s%s\n", str_text(&whole), shown ? "\t" : "", (int)shown, help ? help : "", cut ? "..." : "");
    }
    str_release(&whole);
}

static void offer(const Line *line, const char *word, const char *help) { offer_n(line, word, strlen(word), help); }

static void offer_commands(const Line *line, const CommandGroup *group) {
    for (size_t i = 0; i < group->n; i++) offer(line, group->commands[i].name, group->commands[i].help);
    if (line->last[0] != '-') return;
    offer(line, "--help", "the commands");
    if (group == &group_all) offer(line, "--version", NULL);
}

static void offer_recipes(const Line *line) {
    TextList names;
    if (recipe_names(line->own->arena, &names) != ST_OK) return;
    for (size_t i = 0; i < names.n; i++) offer(line, names.items[i], NULL);
}

/* ---- KEY=VALUE ---- */

static void offer_value(Line *line, const Key *key) {
    str_printf(&line->prefix, "%s=", key->dotted);
    const char *choices = key->choices;
    for (Slice word; choice_next(&choices, &word);) offer_n(line, word.data, word.len, NULL);
    if (key->choices[0]) return;
    if (key->type == KEY_BOOL) {
        offer(line, "true", NULL);
        offer(line, "false", NULL);
    } else if (key->type == KEY_INT || key->type == KEY_REAL || key->type == KEY_REALS)
        offer(line, key->fallback, "default");
    else
        line->files = true;
}

/* Offers the sections first: all keys of tune rl at once would be too many to read. */
static void offer_keys(Line *line, const Command *command) {
    const char *equals = strchr(line->last, '='), *seen = NULL;
    Str word = {0};
    for (size_t i = 0; i < n_recipe_keys; i++) {
        const Key *key = &recipe_keys[i];
        if (!command_takes_key(command, key)) continue;
        size_t len = strlen(key->dotted);
        if (equals && (size_t)(equals - line->last) == len && !strncmp(line->last, key->dotted, len)) offer_value(line, key);
        if (equals) continue;
        bool below = *key->section && !strchr(line->last, '.');
        if (below && seen && !strcmp(seen, key->section)) continue;
        seen = key->section;
        str_clear(&word);
        str_printf(&word, below ? "%s." : "%s=", below ? key->section : key->dotted);
        offer(line, str_text(&word), below ? NULL : key->help);
    }
    str_release(&word);
}

/* ---- arguments, as usage lines write them ---- */

static bool is_word(Slice text) { return text.len == 1 || (text.len > 0 && text.data[0] >= 'a' && text.data[0] <= 'z'); }

/* The next alternative of a usage line such as "ls | show NAME": up to a bar outside of brackets. */
static Slice next_form(const char **at) {
    const char *begin = *at + strspn(*at, " ");
    int depth = 0;
    const char *end = begin;
    for (; *end && !(*end == '|' && depth == 0 && end > begin && end[-1] == ' '); end++) {
        if (*end == '[' || *end == '(')
            depth++;
        else if (*end == ']' || *end == ')')
            depth--;
    }
    *at = *end ? end + 1 : end;
    return (Slice){begin, (size_t)(end - begin)};
}

/* The next argument of an alternative, without brackets; skips options and their values. */
static bool next_piece(Slice *form, Slice *piece) {
    for (bool of_option = false;;) {
        while (form->len && strchr(" []()", *form->data)) form->data++, form->len--;
        if (form->len == 0) return false;
        size_t len = 0, end;
        while (len < form->len && form->data[len] != ' ') len++;
        for (end = len; end > 0 && strchr("])", form->data[end - 1]); end--) {}
        *piece = (Slice){form->data, end};
        form->data += len;
        form->len -= len;
        if (piece->data[0] == '-')
            of_option = true;
        else if (slice_is(*piece, "|"))
            of_option = false;
        else if (of_option)
            of_option = false;
        else
            return true;
    }
}

/* Finds argument n of an alternative whose earlier words match the typed ones. "..." repeats the argument before it. */
static bool piece_at(Slice form, const char *const *typed, size_t n, Slice *piece) {
    Slice next, last = {0};
    for (size_t i = 0; next_piece(&form, &next); i++) {
        bool again = slice_is(next, "...") || (next.len > 3 && !strncmp(next.data + next.len - 3, "...", 3));
        if (slice_is(next, "...")) next = last;
        if (i >= n || again) {
            *piece = next;
            return true;
        }
        if (is_word(next) && !slice_is(next, typed[i])) return false;
        last = next;
    }
    return false;
}

static void offer_piece(Line *line, const Command *command, Slice piece, const char *const *typed, size_t n) {
    for (const char *at = piece.data, *end = at + piece.len; at < end;) {
        const char *bar = memchr(at, '|', (size_t)(end - at));
        Slice one = {at, (size_t)((bar ? bar : end) - at)};
        at = bar ? bar + 1 : end;
        if (is_word(one))
            offer_n(line, one.data, one.len, NULL);
        else if (slice_is(one, "KEY=VALUE"))
            offer_keys(line, command);
        else if (slice_is(one, "NAME"))
            offer_recipes(line);
        else if (slice_is(one, "ENV")) {
            for (size_t i = 0; env_id_at(i); i++) offer(line, env_id_at(i), NULL);
        } else if (slice_is(one, "COMMAND")) {
            const CommandGroup *group;
            const CommandInfo *info;
            size_t used;
            if (command_find(typed, n, &group, &info, &used) == ST_OK && !info) offer_commands(line, group);
        } else if (slice_is(one, "RECIPE")) {
            line->recipes = true;
            if (*line->last) offer_keys(line, command);
        } else if (slice_is(one, "DIR") || slice_is(one, "RUN") || slice_is(one, "WORD")) {
            if (!slice_is(one, "WORD")) line->folders = true;
        } else
            line->files = true;
    }
}

static void offer_argument(Line *line, const Command *command, const char *const *typed, size_t n) {
    Slice piece;
    for (const char *at = command->arguments_help; *at;)
        if (piece_at(next_form(&at), typed, n, &piece)) offer_piece(line, command, piece, typed, n);
}

/* ---- options ---- */

/* Offers listed values, files and folders; numbers and texts cannot be completed. */
static void offer_option_value(Line *line, const Option *option) {
    const char *argument = option->argument, *rest = argument;
    for (Slice one; text_next(&rest, '|', &one);) {
        if (one.len > 1 && is_word(one))
            offer_n(line, one.data, one.len, NULL); /* a single letter stands for a number */
        else if (slice_is(one, "FILE") || text_ends_with(argument, ".jsonl"))
            line->files = true;
        else if (slice_is(one, "DIR"))
            line->folders = true;
    }
}

static const Option *option_of(const CommandView *view, const char *word) {
    size_t len = strcspn(word, "=");
    for (size_t i = 0; i < view->n; i++)
        if (strlen(view->options[i].name) == len && !strncmp(view->options[i].name, word, len)) return &view->options[i];
    return NULL;
}

/* words: those after the command's name, without the last one */
static void complete_command(void *context, const CommandView *view) {
    Line *line = context;
    const char *typed[COUNT_OF(view->command->arguments)];
    const Option *waits = NULL;
    size_t n = 0;
    bool only_arguments = false;
    for (size_t i = 0; i < line->n; i++) {
        const char *word = line->words[i];
        if (waits)
            waits = NULL;
        else if (!only_arguments && !strcmp(word, "--"))
            only_arguments = true;
        else if (!only_arguments && word[0] == '-' && word[1]) {
            waits = strchr(word, '=') ? NULL : option_of(view, word);
            if (waits && waits->type == OPTION_FLAG) waits = NULL;
        } else if (n < COUNT_OF(typed))
            typed[n++] = word;
    }
    const Option *own = !only_arguments && line->last[0] == '-' && strchr(line->last, '=') ? option_of(view, line->last) : NULL;
    if (waits)
        offer_option_value(line, waits);
    else if (own) {
        str_printf(&line->prefix, "%s=", own->name);
        if (own->argument) offer_option_value(line, own);
    } else if (!only_arguments && line->last[0] == '-') {
        for (size_t i = 0; i < view->n; i++) offer(line, view->options[i].name, view->options[i].help);
    } else
        offer_argument(line, view->command, typed, n);
}

static Status complete(const Command *command) {
    const CommandGroup *group;
    const CommandInfo *info;
    size_t used, n = command->n_arguments - 1; /* without "words" itself */
    const char *const *words = command->arguments + 1;
    Line line = {.last = n ? words[n - 1] : "", .own = command};
    n -= n > 0;
    if (command_find(words, n, &group, &info, &used) != ST_OK) return ST_OK; /* nothing follows an unknown command */
    line.words = words + used;
    line.n = n - used;
    if (info)
        TRY(command_describe(info, complete_command, &line));
    else
        offer_commands(&line, group);
    const char *paths = line.files ? "files" : line.recipes ? "recipes" : line.folders ? "folders" : NULL;
    if (paths) print_result(":%s %s\n", paths, str_text(&line.prefix));
    str_release(&line.prefix);
    return ST_OK;
}

/* ---- scripts ---- */

typedef struct Shell {
    const char *name, *script;
} Shell;
static const Shell shells[] = {
    {"bash", "# Completion of tune in bash, as `tune completion bash` prints it. The program itself says what may come next.\n"
             "_tune() {\n"
             "    local rest=$COMP_LINE word last= cut= part line i n=0 IFS=$' \\t\\n'\n"
             "    local -a words=()\n"
             "    COMPREPLY=()\n"
             "    # bash takes words apart at = and : as well: what no space separates is one word\n"
             "    for ((i = 0; i <= COMP_CWORD; i++)); do\n"
             "        word=${COMP_WORDS[i]}\n"
             "        if ((n > 0)) && [[ $rest != [[:space:]]* ]]; then words[n - 1]+=$word; else words[n++]=$word; fi\n"
             "        rest=${rest#\"${rest%%[![:space:]]*}\"}\n"
             "        rest=${rest#\"$word\"}\n"
             "    done\n"
             "    last=${words[n - 1]}\n"
             "    # and only the part after the last of them is replaced\n"
             "    for part in = :; do\n"
             "        [[ $COMP_WORDBREAKS == *\"$part\"* && $last == *\"$part\"* ]] || continue\n"
             "        word=${last%\"${last##*\"$part\"}\"}\n"
             "        ((${#word} > ${#cut})) && cut=$word\n"
             "    done\n"
             "    while IFS= read -r line; do\n"
             "        case $line in\n"
             "        :files\\ * | :folders\\ * | :recipes\\ *)\n"
             "            part=${line#* }\n"
             "            local -a how=(-f)\n"
             "            [[ $line == :folders* ]] && how=(-d)\n"
             "            [[ $line == :recipes* ]] && how=(-f -X '!*.y*ml')\n"
             "            compopt -o filenames 2>/dev/null\n"
             "            while IFS= read -r word; do\n"
             "                word=$part$word\n"
             "                COMPREPLY+=(\"${word#\"$cut\"}\")\n"
             "            done < <(compgen \"${how[@]}\" -- \"${last#\"$part\"}\"; [[ $line == :recipes* ]] && compgen -d -- \"${last#\"$part\"}\")\n"
             "            ;;\n"
             "        ?*)\n"
             "            word=${line%%$'\\t'*}\n"
             "            [[ $word == *[=.] ]] && compopt -o nospace 2>/dev/null\n"
             "            COMPREPLY+=(\"${word#\"$cut\"}\")\n"
             "            ;;\n"
             "        esac\n"
             "    done < <(\"${words[0]/#\\~/$HOME}\" completion words -- \"${words[@]:1}\" 2>/dev/null)\n"
             "}\n"
             "complete -F _tune tune\n"},
    {"zsh", "#compdef tune\n"
            "# Completion of tune in zsh, as `tune completion zsh` prints it. The program itself says what may come next.\n"
            "_tune() {\n"
            "    local line word prefix\n"
            "    local -a lines whole open\n"
            "    lines=(${(f)\"$(\"${(Q)~words[1]}\" completion words -- \"${(@Q)words[2,CURRENT-1]}\" \"${(Q)PREFIX}\" 2>/dev/null)\"})\n"
            "    for line in $lines; do\n"
            "        word=${line%%$'\\t'*}\n"
            "        [[ $line == *$'\\t'* ]] && line=\"${word//:/\\\\:}:${line#*$'\\t'}\" || line=${word//:/\\\\:}\n"
            "        case $word in\n"
            "        :*) ;;\n"
            "        *[=.]) open+=(\"$line\") ;;\n"
            "        *) whole+=(\"$line\") ;;\n"
            "        esac\n"
            "    done\n"
            "    (($#whole)) && _describe -t values tune whole\n"
            "    (($#open)) && _describe -t values tune open -S ''\n"
            "    for line in ${(M)lines:#:*}; do\n"
            "        prefix=${line#* }\n"
            "        [[ -n $prefix ]] && compset -P '*='\n"
            "        case $line in\n"
            "        :folders*) _files -/ ;;\n"
            "        :recipes*) _files -g '*.(yaml|yml)(-.)' ;;\n"
            "        *) _files ;;\n"
            "        esac\n"
            "    done\n"
            "}\n"
            "if [[ $funcstack[1] == _tune ]]; then _tune \"$@\"; else compdef _tune tune; fi\n"},
    {"fish", "# Completion of tune in fish, as `tune completion fish` prints it. The program itself says what may come next.\n"
             "function __tune_complete\n"
             "    set -l words (commandline -opc)\n"
             "    set -l last (commandline -ct)\n"
             "    for line in ($words[1] completion words -- $words[2..-1] \"$last\" 2>/dev/null)\n"
             "        set -l prefix (string replace -r '^:\\\\w+ ' '' -- $line)\n"
             "        set -l path (string sub -s (math (string length -- \"$prefix\") + 1) -- \"$last\")\n"
             "        switch $line\n"
             "            case ':folders *'\n"
             "                string replace -r '^' -- \"$prefix\" (__fish_complete_directories \"$path\" '')\n"
             "            case ':files *' ':recipes *'\n"
             "                string replace -r '^' -- \"$prefix\" (__fish_complete_path \"$path\")\n"
             "            case '*'\n"
             "                echo $line\n"
             "        end\n"
             "    end\n"
             "end\n"
             "complete -c tune -f -a '(__tune_complete)'\n"},
};

static Status completion(const Command *command, void *context) {
    (void)context;
    TRY(command_needs(command, 1, COUNT_OF(command->arguments)));
    const char *what = command->arguments[0];
    if (!strcmp(what, "words")) return complete(command);
    TRY(command_needs(command, 1, 1));
    for (size_t i = 0; i < COUNT_OF(shells); i++)
        if (!strcmp(shells[i].name, what)) {
            print_text(shells[i].script, strlen(shells[i].script));
            return ST_OK;
        }
    return status_hint(status_fail(ST_USAGE, "tune completion does not know the shell '%s'", what), "bash, zsh, fish");
}

Status cmd_completion(int argc, char **argv) {
    Command command = {
        .arguments_help = "bash | zsh | fish | words [WORD ...]",
        .help =
            "Prints the script with which a shell completes commands, options, recipe keys and their values. make install installs it where shells look for it.\n"
            "    eval \"$(tune completion bash)\"\n"
            "    eval \"$(tune completion zsh)\"\n"
            "    tune completion fish | source\n"
            "`words -- WORD ...` prints the candidates for the last word of a command line (without `tune`); the scripts call it.",
    };
    return command_main(&command, argc, argv, NULL, completion, NULL);
}
