/* SPDX-License-Identifier: Apache-2.0 */
/* The manual page tune(1), in man macros: the help of every command, and the parts that are common to all of them. */
#include <string.h>

#include "cmd/app/terminal.h"
#include "cmd/app/help.h"

/* ---- roff ---- */

/* Escapes a text so that no line is a roff request, and dashes and quotes can be copied from the page as typed. */
static void add_plain(Str *out, const char *text, size_t len) {
    static const struct {
        char c;
        const char *roff;
    } escapes[] = {{'\\', "\\e"}, {'-', "\\-"}, {'\'', "\\(aq"}, {'`', "\\(ga"}, {'^', "\\(ha"}, {'~', "\\(ti"}};
    if (len && (*text == '.' || *text == '\'')) str_append(out, "\\&");
    for (size_t i = 0; i < len; i++) {
        const char *roff = NULL;
        for (size_t k = 0; k < COUNT_OF(escapes); k++)
            if (text[i] == escapes[k].c) roff = escapes[k].roff;
        if (roff)
            str_append(out, roff);
        else
            str_append_char(out, text[i]);
    }
}

/* Breaks long lines at a space, unless the next line would begin with a request. */
static void manual_fill(Str *out, size_t from) {
    enum { ENOUGH = 60 };
    size_t begin = from;
    for (size_t i = from; i + 1 < out->len; i++) {
        if (out->data[i] != ' ' || i - begin < ENOUGH || strchr(".' ", out->data[i + 1]) || out->data[i - 1] == ' ') continue;
        out->data[i] = '\n';
        begin = i + 1;
    }
}

/* A line of text; `font`: "B", "I" or NULL. */
static void add_line(Str *out, const char *font, const char *text, size_t len) {
    if (font) str_printf(out, "\\f%s", font);
    add_plain(out, text, len);
    if (font) str_append(out, "\\fR");
    str_append_char(out, '\n');
}

static void add_filled(Str *out, const char *text, size_t len) {
    size_t from = out->len;
    add_line(out, NULL, text, len);
    manual_fill(out, from);
}

static void add_text_line(Str *out, const char *text) { add_filled(out, text, strlen(text)); }

static void add_entry(Str *out, const char *name, const char *rest, const char *text) {
    str_append(out, ".TP\n\\fB");
    add_plain(out, name, strlen(name));
    str_append(out, "\\fR");
    if (rest && *rest) add_plain(out, rest, strlen(rest));
    str_append_char(out, '\n');
    add_text_line(out, text);
}

static void add_blocks(Str *out, const char *text) {
    Block block;
    HelpKind before = BLOCK_EXAMPLE;
    bool first = true;
    for (; help_block(&text, &block); before = block.kind, first = false) {
        if (before == BLOCK_EXAMPLE && block.kind != BLOCK_EXAMPLE && !first) str_append(out, ".fi\n.RE\n");
        if (block.kind == BLOCK_EXAMPLE) {
            if (before != BLOCK_EXAMPLE || first) str_append(out, ".PP\n.RS 4\n.nf\n");
            add_line(out, NULL, block.text.data, block.text.len);
        } else if (block.kind == BLOCK_ENTRY) {
            str_append(out, ".TP\n");
            add_line(out, "B", block.name.data, block.name.len);
            add_filled(out, block.text.data, block.text.len);
        } else if (block.text.len) {
            if (!first) str_append(out, ".PP\n");
            add_filled(out, block.text.data, block.text.len);
        }
    }
    if (!first && before == BLOCK_EXAMPLE) str_append(out, ".fi\n.RE\n");
}

/* ---- parts made from the tables ---- */

static void add_options(Str *out, const Option *options, size_t n) {
    Str rest = {0};
    for (size_t i = 0; i < n; i++) {
        str_clear(&rest);
        if (options[i].argument) str_printf(&rest, " %s", options[i].argument);
        add_entry(out, options[i].name, str_text(&rest), options[i].help);
    }
    str_release(&rest);
}

static void add_takes_keys(Str *out, const char *const *sections) {
    Str text = {0};
    for (const char *const *section = sections; *section; section++)
        if (**section && strcmp(*section, "reward") != 0) str_printf(&text, "%s%s", text.len ? ", " : "", *section);
    str_append(out, ".PP\nRecipe keys (see below): those without a section, and those of ");
    add_plain(out, str_text(&text), text.len);
    str_append(out, ".\n");
    str_release(&text);
}

static void add_command(void *context, const CommandView *view) {
    Str *out = context;
    const Command *command = view->command;
    str_printf(out, ".SS %s%s", command->name, *command->arguments_help ? " " : "");
    add_line(out, NULL, command->arguments_help, strlen(command->arguments_help));
    add_blocks(out, command->help);
    if (command->sections) add_takes_keys(out, command->sections);
    add_options(out, view->options, view->n_own);
}

static void add_common(void *context, const CommandView *view) { add_options(context, view->options + view->n_own, view->n - view->n_own); }

static Status add_commands(Str *out, const CommandGroup *group) {
    for (size_t i = 0; i < group->n; i++) {
        const CommandInfo *info = &group->commands[i];
        if (info->group)
            TRY(add_commands(out, info->group));
        else
            TRY(command_describe(info, add_command, out));
    }
    return ST_OK;
}

static void add_owner(Str *out, const KeyOwner *owner) {
    str_append(out, ".PP\n");
    add_line(out, "I", owner->title, strlen(owner->title));
}

static void add_keys(Str *out, const char *section) {
    Str text = {0}, rest = {0};
    bool grouped = *section && section_owners(section) > 1;
    for (const Key *key = NULL, *last = NULL; (key = key_listed_after(section, last)); last = key) {
        if (grouped && (!last || last->owner != key->owner)) add_owner(out, &recipe_owners[key->owner]);
        str_clear(&text);
        str_clear(&rest);
        key_describe(key, &text);
        str_printf(&rest, "=%s", key->fallback);
        add_entry(out, key->dotted, str_text(&rest), str_text(&text));
    }
    str_release(&text);
    str_release(&rest);
}

static void add_codes(Str *out) {
    static const Status all[] = {
#define STATUS(name, exit_code, meaning) name,
#include "lib/base/status.def"
#undef STATUS
    };
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        Str code = {0};
        str_printf(&code, "%d", status_exit_code(all[i]));
        add_entry(out, str_text(&code), NULL, status_meaning(all[i]));
        str_release(&code);
    }
}

/* ---- parts that are in no table ---- */

typedef struct Entry {
    const char *name, *text;
} Entry;

static const char about[] =
    "tune fine-tunes language models on ordinary machines. It reads a recipe in YAML and a model in Hugging Face format, and writes an adapter or a merged model "
    "that PEFT, transformers and llama.cpp load.\n"
    "A recipe says what to train, on which data and how. Overrides follow it as KEY=VALUE, where VALUE is YAML. tune recipes lists the recipes that come with "
    "the program. A misspelt key, option or command is an error that suggests the nearest name.\n"
    "Results go to stdout, progress and messages to stderr. The same command with --resume continues an interrupted run.";

static const Entry files[] = {
    {"recipes/",
     "shipped recipes: looked for in the current directory, in the program's directory, and in ../share/tune/recipes relative to the program"},
    {"OUTPUT/adapter/, OUTPUT/model/", "the result of a run: an adapter in PEFT format, or the whole model"},
    {"OUTPUT/report.html", "the report of the run, a page without external resources"},
    {"OUTPUT/metrics.jsonl", "one line of JSON for each logged step"},
    {"OUTPUT/recipe.yaml", "the recipe with all of its settings"},
};
static const Entry variables[] = {
    {"OMP_NUM_THREADS, SLURM_CPUS_PER_TASK", "number of threads, unless --threads or the recipe sets it"},
    {"COLUMNS", "width of help on a terminal"},
    {"TERM, NO_COLOR", "TERM=dumb turns off redrawing and colours; NO_COLOR turns off colours"},
    {"LC_ALL, LC_CTYPE, LANG", "in a locale without UTF-8 (C, POSIX), bars and arrows are ASCII"},
    {"TUNE_ISA", "instruction set of the kernels instead of the processor's best: base, avx2, avx512, avx512_widened, avx512_bf16, amx"},
    {"TUNE_GEMM", "library for matrix products: own, openblas, onednn"},
};
static const char examples[] = "Copy a recipe, check the rows as training will see them, train, chat, merge:\n"
                               "    tune recipes cp sft_lora my.yaml\n"
                               "    tune data check my.yaml model.path=DIR data.train=rows.jsonl\n"
                               "    tune sft my.yaml model.path=DIR data.train=rows.jsonl output=runs/mine\n"
                               "    tune chat DIR --adapter runs/mine/adapter\n"
                               "    tune merge DIR runs/mine/adapter -o merged\n"
                               "Train on preferences, or in an environment:\n"
                               "    tune rl recipes/rl_dpo.yaml model.path=DIR data.train=pairs.jsonl output=runs/dpo\n"
                               "    tune rl recipes/rl_cartpole_ppo.yaml output=runs/cartpole\n"
                               "Solve a small MDP exactly:\n"
                               "    tune mdp solve FrozenLake-v1 --gamma 0.99";

static void add_entries(Str *out, const Entry *entries, size_t n) {
    for (size_t i = 0; i < n; i++) add_entry(out, entries[i].name, NULL, entries[i].text);
}

Status print_manual(void) {
    Str out = {0};
    const CommandInfo *any = NULL;
    for (size_t i = 0; i < group_all.n && !any; i++)
        if (group_all.commands[i].run) any = &group_all.commands[i];
    str_printf(&out, ".TH TUNE 1 \"%s\" \"", tune_released);
    add_plain(&out, tune_program, strlen(tune_program));
    str_append(&out, "\"\n.SH NAME\ntune \\- fine\\-tune language models on ordinary machines\n"
                     ".SH SYNOPSIS\n\\fBtune\\fR \\fICOMMAND\\fR [\\fIARGUMENT\\fR ...] [\\fIOPTION\\fR ...]\n.SH DESCRIPTION\n");
    add_blocks(&out, about);
    str_append(&out, ".SH COMMANDS\n");
    Status status = add_commands(&out, &group_all);
    str_append(&out, ".SH OPTIONS\nEvery command takes these options.\n");
    if (status == ST_OK) status = command_describe(any, add_common, &out);
    str_append(&out, ".SH RECIPE KEYS\nEach key is shown with its default.\n");
    add_keys(&out, "");
    for (size_t i = 0; i < n_recipe_sections; i++) {
        str_printf(&out, ".SS %s: %s\n", recipe_sections[i].name, recipe_sections[i].help);
        add_keys(&out, recipe_sections[i].name);
    }
    str_append(&out, ".SH EXIT STATUS\n");
    add_codes(&out);
    str_append(&out, ".PP\nAfter an error, the last lines on stderr are the error and, if there is one, a hint.\n.SH FILES\n");
    add_entries(&out, files, COUNT_OF(files));
    str_append(&out, ".SH ENVIRONMENT\n");
    add_entries(&out, variables, COUNT_OF(variables));
    str_append(&out, ".SH EXAMPLES\n");
    add_blocks(&out, examples);
    str_append(&out, ".SH SEE ALSO\n.BR numactl (8),\n.BR tensorboard (1),\n.BR llama-cli (1)\n");
    if (status == ST_OK) print_text(str_text(&out), out.len);
    str_release(&out);
    return status;
}
