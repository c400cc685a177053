/* SPDX-License-Identifier: Apache-2.0 */
/* tune help TOPIC: one recipe key, a section of them, or what an algorithm reads. */
#include <string.h>

#include "cmd/app/terminal.h"
#include "cmd/app/help.h"
#include "rl/keys/algorithm_keys.h"

/* ---- a key ---- */

typedef struct Takers {
    const Key *key;
    Str text;
} Takers;

static void note_taker(void *context, const CommandView *view) {
    Takers *takers = context;
    if (command_takes_key(view->command, takers->key)) str_printf(&takers->text, "%s%s", takers->text.len ? ", " : "", view->command->name);
}

static Status find_takers(const CommandGroup *group, Takers *takers) {
    for (size_t i = 0; i < group->n; i++) {
        const CommandInfo *info = &group->commands[i];
        TRY(info->group ? find_takers(info->group, takers) : command_describe(info, note_taker, takers));
    }
    return ST_OK;
}

static void add_line(Str *out, const char *what, const Str *text) {
    Str line = {0};
    str_printf(&line, "%s: %s", what, str_text(text));
    if (text->len) help_text(out, str_text(&line));
    str_release(&line);
}

static Status say_key(const Key *key) {
    Str out = {0}, who = {0}, others = {0}, file = {0};
    Takers takers = {.key = key};
    Status status = find_takers(&group_all, &takers);
    help_key(&out, key);
    str_append_char(&out, '\n');
    if (*key->section)
        str_printf(&file, "'%s: {%s: ...}', on the command line %s=...", key->section, key->name, key->dotted);
    else
        str_printf(&file, "'%s: ...', on the command line %s=...", key->name, key->dotted);
    add_line(&out, "in a recipe", &file);
    add_line(&out, "taken by", &takers.text);
    if (!strcmp(key->section, "rl") || !strcmp(key->section, "policy")) algorithms_reading(key->dotted, &who);
    add_line(&out, "read by", &who);
    key_aliases(key->dotted, &others);
    add_line(&out, "other programs call it", &others);
    page_text(str_text(&out), out.len);
    str_release(&out);
    str_release(&who);
    str_release(&others);
    str_release(&file);
    str_release(&takers.text);
    return status;
}

/* ---- an algorithm ---- */

static bool is_of_kind(size_t kind, const char *name) {
    const char *of;
    for (size_t i = 0; (of = algorithm_of_kind(kind, i)); i++)
        if (!strcmp(of, name)) return true;
    return false;
}

static bool is_algorithm(const char *name) {
    for (size_t kind = 0; algorithm_kind(kind); kind++)
        if (is_of_kind(kind, name)) return true;
    return false;
}

/* Explains the algorithm's own keys and those of section rl; lists the others by name. */
static void add_algorithm(Str *out, size_t kind, const char *name) {
    Str text = {0}, rest = {0};
    str_printf(&text, "%s%s %s: rl.algorithm=%s. It reads these keys:", out->len ? "\n" : "", name, algorithm_kind(kind), name);
    help_text(out, str_text(&text));
    for (size_t i = 0; i < n_recipe_keys; i++) {
        const Key *key = &recipe_keys[i];
        if (!algorithm_reads(kind, name, key->dotted, false) || !strcmp(key->dotted, "rl.algorithm")) continue;
        if (!strcmp(key->section, "rl") || algorithm_reads(kind, name, key->dotted, true))
            help_key(out, key);
        else
            str_printf(&rest, "%s%s", rest.len ? ", " : "", key->dotted);
    }
    add_line(out, "and", &rest);
    str_release(&text);
    str_release(&rest);
}

static void say_algorithm(const char *name) {
    Str out = {0};
    for (size_t kind = 0; algorithm_kind(kind); kind++)
        if (is_of_kind(kind, name)) add_algorithm(&out, kind, name);
    help_text(&out,
              "\nAll algorithms that read rows or prompts also read the sections model, lora, data and generate; `tune help KEY` explains one key.");
    page_text(str_text(&out), out.len);
    str_release(&out);
}

/* ---- finding the topic ---- */

static const Key *key_named(const Command *command, const char *topic) {
    for (size_t i = 0; i < n_recipe_keys; i++)
        if (!strcmp(recipe_keys[i].name, topic) && (!command || command_takes_key(command, &recipe_keys[i]))) return &recipe_keys[i];
    const char *alias = key_alias(topic);
    return alias ? key_find(alias) : NULL;
}

static bool is_section(const char *name) {
    for (size_t i = 0; i < n_recipe_sections; i++)
        if (!strcmp(recipe_sections[i].name, name)) return true;
    return false;
}

static Status unknown_topic(const Command *command, const char *topic) {
    const char *near = key_suggest("", topic);
    if (command)
        status_fail(ST_USAGE, "tune help does not know what to do with '%s' after '%s'", topic, command_words(command));
    else
        status_fail(ST_USAGE, "tune help knows no topic '%s'", topic);
    if (command && !command->sections) return status_hint(ST_USAGE, "tune help %s explains the command", command_words(command));
    return near ? status_hint(ST_USAGE, "did you mean '%s'?", near) : status_hint(ST_USAGE, "topics are recipe keys, their sections, and algorithms");
}

static Status topics_say(const CommandView *view, const char *topic) {
    const Command *command = view ? view->command : NULL;
    bool takes_keys = !command || command->sections;
    const Key *key = takes_keys ? key_find(topic) : NULL;
    if (view && takes_keys && !strcmp(topic, "all")) {
        print_help(view, true);
        return ST_OK;
    }
    if (key) return say_key(key);
    if (takes_keys && is_section(topic)) {
        Str out = {0};
        help_section(&out, command, topic);
        page_text(str_text(&out) + (out.len > 0 && out.data[0] == '\n'), out.len - (out.len > 0 && out.data[0] == '\n'));
        str_release(&out);
        return ST_OK;
    }
    if ((!command || !strcmp(command_words(command), "rl")) && is_algorithm(topic)) {
        say_algorithm(topic);
        return ST_OK;
    }
    key = takes_keys ? key_named(command, topic) : NULL;
    return key ? say_key(key) : unknown_topic(command, topic);
}

typedef struct Asked {
    const char *topic;
    Status status;
} Asked;

static void say_of_command(void *context, const CommandView *view) {
    Asked *asked = context;
    asked->status = topics_say(view, asked->topic);
}

Status help_topic(const CommandInfo *info, const char *topic) {
    Asked asked = {topic, ST_OK};
    if (info) {
        TRY(command_describe(info, say_of_command, &asked));
        return asked.status;
    }
    for (size_t i = 0; i < group_all.n; i++)
        if (!strcmp(group_all.commands[i].name, topic)) return ST_USAGE; /* the name of a command is not a topic */
    return topics_say(NULL, topic);
}
