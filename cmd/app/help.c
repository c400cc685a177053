/* SPDX-License-Identifier: Apache-2.0 */
/* Prints --help, wrapped to the width of the terminal. */
#include "cmd/app/terminal.h"
#include "cmd/app/help.h"

#include <string.h>

/* TEXT_COLUMN: where the descriptions of options and keys begin. WIDEST: wider lines are hard to read. */
enum { TEXT_COLUMN = 28, WIDEST = 100, NARROWEST = 50, WIDTH_OF_PIPES = 80 };

static CommandReader *reader; /* set by command_describe: help_answer calls it instead of printing */
static void *reader_context;

Status command_describe(const CommandInfo *info, CommandReader *read, void *context) {
    char *argv[] = {(char *)(uintptr_t)info->full_name, (char *)(uintptr_t) "--help", NULL};
    reader = read;
    reader_context = context;
    Status status = info->run(2, argv);
    reader = NULL;
    return status;
}

/* ---- blocks of a help text ---- */

static Slice slice_of(const char *text) { return (Slice){text, strlen(text)}; }

bool help_block(const char **at, Block *block) {
    if (!**at) return false;
    size_t len = strcspn(*at, "\n"), indent = strspn(*at, " "), name = indent, gap;
    const char *line = *at;
    *at += len + (line[len] == '\n');
    *block = (Block){.kind = indent >= 4 ? BLOCK_EXAMPLE : BLOCK_PARAGRAPH, .indent = (int)indent, .text = {line + indent, len - MIN(indent, len)}};
    while (name < len && strncmp(line + name, "  ", 2) != 0) name++;
    gap = strspn(line + name, " ");
    if (indent < 2 || indent >= len || name + gap >= len) return true;
    block->kind = BLOCK_ENTRY;
    block->name = (Slice){line + indent, name - indent};
    block->text = (Slice){line + name + gap, len - name - gap};
    return true;
}

static void option_left(const Option *option, Str *text) {
    str_append(text, option->name);
    if (option->argument) str_printf(text, " %s", option->argument);
}

const char *command_words(const Command *command) {
    const char *space = strchr(command->name, ' ');
    return space ? space + 1 : command->name;
}

static void key_left(const Key *key, Str *text) { str_printf(text, "%s=%s", key->dotted, key->fallback); }

bool command_takes_key(const Command *command, const Key *key) {
    const char *section = strcmp(key->dotted, "reward") == 0 ? "reward" : key->section;
    for (const char *const *s = command->sections; s && *s; s++)
        if (strcmp(*s, section) == 0) return true;
    return false;
}

/* ---- wrapping ---- */

static int columns_of(const char *text, size_t len) {
    int n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)text[i] & 0xC0) != 0x80; /* counts UTF-8 characters */
    return n;
}

static void spaces(Str *out, int n) {
    for (int i = 0; i < n; i++) str_append_char(out, ' ');
}

/* The length of the word at `at`. In a command, a quoted text is one word. */
static size_t word_length(Slice text, size_t at, bool command) {
    size_t end = at;
    char quote = 0;
    for (; end < text.len && (quote || text.data[end] != ' '); end++) {
        if (!command || (text.data[end] != '\'' && text.data[end] != '"')) continue;
        if (!quote)
            quote = text.data[end];
        else if (quote == text.data[end])
            quote = 0;
    }
    return end - at;
}

/* Wraps a text: the first line begins at `column`, the others at `hanging`. Lines of a command end with a backslash, except the last one. */
static void fold(Str *out, Slice text, int column, int hanging, int width, bool command) {
    const char *more = command ? " \\" : "";
    bool first = true;
    for (size_t at = 0; at < text.len;) {
        while (at < text.len && text.data[at] == ' ') at++;
        size_t len = word_length(text, at, command);
        int columns = columns_of(text.data + at, len), room = width - (at + len < text.len && command ? 2 : 0);
        if (!first && column + 1 + columns > room) {
            str_printf(out, "%s\n", more);
            spaces(out, column = hanging);
        } else if (!first) {
            str_append_char(out, ' ');
            column++;
        }
        str_append_n(out, text.data + at, len);
        column += columns;
        at += len;
        first = false;
    }
    str_append_char(out, '\n');
}

/* The offset after the last '|' that fits into `room` columns; 0 if there is none. */
static size_t after_bar(Slice name, int room) {
    size_t at = 0;
    for (size_t i = 0; i < name.len && columns_of(name.data, i + 1) <= room; i++)
        if (name.data[i] == '|') at = i + 1;
    return at;
}

/* A name and its description, which begins at `text_column`: on the same line, or on the next one if the name is too long. */
static void fold_entry(Str *out, int indent, Slice name, int text_column, Slice text, int width) {
    for (size_t at; columns_of(name.data, name.len) > width - indent && (at = after_bar(name, width - indent)); indent = 6) {
        spaces(out, indent);
        str_printf(out, "%.*s\n", (int)at, name.data);
        name = (Slice){name.data + at, name.len - at};
    }
    int used = indent + columns_of(name.data, name.len);
    spaces(out, indent);
    str_append_n(out, name.data, name.len);
    if (used + 2 > text_column) {
        str_append_char(out, '\n');
        used = 0;
    }
    spaces(out, text_column - used);
    fold(out, text, text_column, text_column, width, false);
}

/* The text column of a list: 2 more than the widest name of the consecutive entries at `text`. */
static int column_of_list(const char *text) {
    Block block;
    int column = 0;
    while (help_block(&text, &block) && block.kind == BLOCK_ENTRY)
        if (columns_of(block.name.data, block.name.len) <= TEXT_COLUMN)
            column = MAX(column, block.indent + columns_of(block.name.data, block.name.len));
    return column + 2;
}

static void fold_text(Str *out, const char *text, int width) {
    Block block;
    int column = 0;
    for (const char *at = text, *line = text; help_block(&at, &block); line = at) {
        if (block.kind != BLOCK_ENTRY)
            column = 0;
        else if (column == 0)
            column = column_of_list(line);
        if (block.kind == BLOCK_ENTRY) {
            fold_entry(out, block.indent, block.name, column, block.text, width);
        } else {
            spaces(out, block.indent);
            fold(out, block.text, block.indent,
                 block.kind == BLOCK_EXAMPLE ? 8
                 : block.indent              ? block.indent + 4
                                             : 0,
                 width, block.kind == BLOCK_EXAMPLE);
        }
    }
}

static int help_width(void) {
    int columns = screen_width();
    return columns ? MIN(MAX(columns, NARROWEST), WIDEST) : WIDTH_OF_PIPES;
}

/* ---- a command's help ---- */

static void add_options(Str *out, const Option *options, size_t n, int width) {
    Str left = {0};
    for (size_t i = 0; i < n; i++) {
        str_clear(&left);
        option_left(&options[i], &left);
        fold_entry(out, 2, (Slice){left.data, left.len}, TEXT_COLUMN, slice_of(options[i].help), width);
    }
    str_release(&left);
}

/* The title of the owner of `key`, if the key listed before it (NULL: none) has another owner; else NULL. */
static const char *new_owner(const char *section, const Key *key, const Key *before) {
    if (!*section || section_owners(section) < 2 || (before && before->owner == key->owner)) return NULL;
    return recipe_owners[key->owner].title;
}

static void add_section(Str *out, const Command *command, const char *section, const char *about, int width) {
    Str left = {0}, text = {0};
    const Key *before = NULL;
    for (const Key *key = NULL; (key = key_listed_after(section, key));) {
        if (command && !command_takes_key(command, key)) continue;
        const char *owner = new_owner(section, key, before);
        if (!before && *section) str_printf(out, "\n  %s: %s\n", section, about);
        if (owner) str_printf(out, "\n    %s:\n", owner);
        before = key;
        str_clear(&left);
        str_clear(&text);
        key_left(key, &left);
        key_describe(key, &text);
        fold_entry(out, 2, (Slice){left.data, left.len}, TEXT_COLUMN, (Slice){text.data, text.len}, width);
    }
    str_release(&left);
    str_release(&text);
}

static void fold_names(Str *out, Str *names, int width) {
    spaces(out, names->len ? 4 : 0);
    if (names->len) fold(out, (Slice){names->data, names->len}, 4, 6, width, false);
    str_clear(names);
}

/* The dotted names of a section's keys (section NULL: of the top level), beginning a new line for each owner of keys. */
static void add_names(Str *out, const Command *command, const KeySection *section, int width) {
    Str text = {0};
    const char *name = section ? section->name : "";
    const Key *before = NULL;
    for (const Key *key = NULL; (key = key_listed_after(name, key));) {
        if (!command_takes_key(command, key)) continue;
        const char *owner = new_owner(name, key, before);
        if (!before && section) str_printf(out, "\n  %s: %s\n", name, section->help);
        if (owner) fold_names(out, &text, width);
        if (owner) str_printf(&text, "%s:", owner);
        str_printf(&text, "%s%s", text.len ? " " : "", key->dotted);
        before = key;
    }
    fold_names(out, &text, width);
    str_release(&text);
}

static void add_keys_by_name(Str *out, const Command *command, int width) {
    Str text = {0};
    str_printf(
        &text,
        "\nrecipe keys by section; override them with KEY=VALUE after the recipe. `tune help %s SECTION` explains the keys of a section, `tune "
        "help KEY` explains one key,%s `tune help %s all` explains all keys:",
        command_words(command), strcmp(command_words(command), "rl") == 0 ? " `tune help rl ALGORITHM` lists the keys that an algorithm reads," : "",
        command_words(command));
    fold_text(out, str_text(&text), width);
    add_names(out, command, NULL, width);
    for (size_t i = 0; i < n_recipe_sections; i++) add_names(out, command, &recipe_sections[i], width);
    str_release(&text);
}

static void add_keys(Str *out, const Command *command, int width) {
    fold_text(out, "\nrecipe keys and their defaults; override them with KEY=VALUE after the recipe:", width);
    add_section(out, command, "", NULL, width);
    for (size_t i = 0; i < n_recipe_sections; i++) add_section(out, command, recipe_sections[i].name, recipe_sections[i].help, width);
}

static size_t lines_in(const Str *text) {
    size_t n = 0;
    for (size_t i = 0; i < text->len; i++) n += text->data[i] == '\n';
    return n;
}

void print_help(const CommandView *view, bool whole) {
    enum { LONG = 300 }; /* more lines of keys than this are listed by name only */
    const Command *command = view->command;
    Str out = {0}, usage = {0}, keys = {0};
    int width = help_width();
    str_printf(&usage, "usage: %s%s%s%s", command->name, *command->arguments_help ? " " : "", command->arguments_help,
               view->n_own ? " [options]" : "");
    fold(&out, (Slice){usage.data, usage.len}, 0, 8, width, false);
    str_append_char(&out, '\n');
    fold_text(&out, command->help, width);
    if (command->sections) add_keys(&keys, command, width);
    if (!whole && lines_in(&keys) > LONG) {
        str_clear(&keys);
        add_keys_by_name(&keys, command, width);
    }
    str_append_n(&out, str_text(&keys), keys.len);
    if (view->n_own) str_append(&out, "\noptions:\n");
    add_options(&out, view->options, view->n_own, width);
    str_append(&out, "\noptions of every command:\n");
    add_options(&out, view->options + view->n_own, view->n - view->n_own, width);
    page_text(str_text(&out), out.len);
    str_release(&out);
    str_release(&usage);
    str_release(&keys);
}

void help_section(Str *out, const Command *command, const char *section) {
    const char *about = "";
    for (size_t i = 0; i < n_recipe_sections; i++)
        if (!strcmp(recipe_sections[i].name, section)) about = recipe_sections[i].help;
    add_section(out, command, section, about, help_width());
}

void help_key(Str *out, const Key *key) {
    Str left = {0}, text = {0};
    key_left(key, &left);
    key_describe(key, &text);
    fold_entry(out, 2, (Slice){left.data, left.len}, TEXT_COLUMN, (Slice){text.data, text.len}, help_width());
    str_release(&left);
    str_release(&text);
}

void help_fold(Str *out, const char *words, int column, int width) {
    size_t line = out->len;
    while (line > 0 && out->data[line - 1] != '\n') line--;
    int used = columns_of(out->data + line, out->len - line);
    fold(out, slice_of(words), used, column, width, false);
    out->data[--out->len] = '\0';
}

void help_text(Str *out, const char *text) { fold_text(out, text, help_width()); }

void help_answer(const CommandView *view) {
    if (reader)
        reader(reader_context, view);
    else
        print_help(view, false);
}

void print_commands(const CommandGroup *group) {
    Str out = {0}, list = {0};
    int width = help_width();
    const char *space = *group->name ? " " : "";
    fold_text(&out, group->about, width);
    str_printf(&out, "\nusage: tune %s%sCOMMAND ...\n\n", group->name, space);
    for (size_t i = 0; i < group->n; i++) str_printf(&list, "  %s  %s\n", group->commands[i].name, group->commands[i].help);
    fold_text(&out, str_text(&list), width);
    str_append_char(&out, '\n');
    str_clear(&list);
    str_printf(&list, "tune %s%sCOMMAND --help explains a command.", group->name, space);
    if (!*group->name) str_append(&list, " Every command takes --threads N, --quiet, --log N, --profile and --json.");
    fold_text(&out, str_text(&list), width);
    print_text(str_text(&out), out.len);
    str_release(&out);
    str_release(&list);
}
