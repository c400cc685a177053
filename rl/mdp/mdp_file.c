/* SPDX-License-Identifier: Apache-2.0 */
/* Reads MDP files: YAML, and JSON, which is YAML's flow style. It reads a stream of events into arrays of numbers, so that a million transitions do
 * not become a tree of nodes. States and actions may be used before they are listed; names are looked up at the end. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>
#include <yaml.h>

#include "rl/mdp/mdp_parts.h"

#define MAX_BYTES ((size_t)1 << 30)
enum { NO_WORD = -1, NOT_FOUND = -1 };

/* Interned texts of the file, by number. */
typedef struct Words {
    const char **items;
    int32_t n, room;
    int32_t *slots;
    size_t n_slots;
    Arena *arena;
} Words;

/* The number of states or actions, or their names. */
typedef struct Names {
    int64_t n;
    int32_t *words;
    size_t room;
    int line;
    bool named;
} Names;
typedef struct Transition {
    int32_t state, action, next;
    int line;
    double probability, reward;
    bool ends;
} Transition;
typedef struct Place {
    int32_t state;
    int line;
    double probability;
} Place;
typedef struct Places {
    Place *items;
    size_t n, room;
} Places;

typedef struct Reader {
    yaml_parser_t parser;
    yaml_event_t event;
    Words words;
    Names states, actions;
    bool is_chain;    /* the file has no key `actions`: transitions have no action */
    bool has_rewards; /* a transition of the chain has a reward */
    const Str *text;
    double gamma;       /* NAN: not read yet */
    double other_gamma; /* overrides the file's; NAN: none */
    Transition *transitions;
    size_t n_transitions, room;
    Places starts, terminals;
} Reader;

/* ---- events ---- */

static int line_of(const Reader *reader) { return (int)reader->event.start_mark.line + 1; }
static Status mdp_file_fault(const Reader *reader, const char *expected) {
    return status_fail(ST_INPUT, "line %d: expected %s", line_of(reader), expected);
}

static Status mdp_next_event(Reader *reader) {
    yaml_event_delete(&reader->event);
    if (!yaml_parser_parse(&reader->parser, &reader->event)) {
        const yaml_parser_t *parser = &reader->parser;
        if (parser->error == YAML_MEMORY_ERROR) return status_errno(ENOMEM, "cannot parse it");
        size_t line = parser->error == YAML_READER_ERROR ? parser->mark.line : parser->problem_mark.line;
        return status_fail(ST_INPUT, "line %zu: %s", line + 1, parser->problem ? parser->problem : "not YAML");
    }
    if (reader->event.type == YAML_ALIAS_EVENT) return status_fail(ST_INPUT, "line %d: aliases are not supported", line_of(reader));
    return ST_OK;
}

static bool mdp_file_is(const Reader *reader, yaml_event_type_t type) { return reader->event.type == type; }
static const char *text_of(const Reader *reader) { return (const char *)reader->event.data.scalar.value; }

/* Whether YAML reads the scalar as null. */
static bool is_null_event(const yaml_event_t *event) {
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    if (event->type != YAML_SCALAR_EVENT || event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return false;
    for (size_t i = 0; i < COUNT_OF(nulls); i++)
        if (strcmp((const char *)event->data.scalar.value, nulls[i]) == 0) return true;
    return false;
}
static bool is_null(const Reader *reader) { return is_null_event(&reader->event); }

/* The current scalar. */
static Status need_scalar(const Reader *reader, const char *expected) {
    if (!mdp_file_is(reader, YAML_SCALAR_EVENT)) return mdp_file_fault(reader, expected);
    if (memchr(text_of(reader), 0, reader->event.data.scalar.length))
        return status_fail(ST_INPUT, "line %d: a text holds a NUL character", line_of(reader));
    return ST_OK;
}

static bool parse_whole(const char *text, int64_t *value) {
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 10);
    return (isdigit((unsigned char)*text) || *text == '-') && !*end && !errno;
}

static bool parse_decimal(const char *text, const char *stop, double *value) {
    char *end;
    if (text == stop || text[strspn(text, "+-.0123456789eE/")] != '\0') return false;
    *value = strtod(text, &end);
    return end == stop && isfinite(*value);
}

/* A decimal number or a fraction of two: 0.1, 1e-3, 1/3. */
static Status need_number(const Reader *reader, const char *expected, double *value) {
    TRY(need_scalar(reader, expected));
    const char *text = text_of(reader), *end = text + strlen(text), *slash = strchr(text, '/');
    double divisor = 1;
    bool fine = parse_decimal(text, slash ? slash : end, value) && (!slash || (parse_decimal(slash + 1, end, &divisor) && divisor != 0));
    *value /= divisor;
    return fine && isfinite(*value) ? ST_OK : status_fail(ST_INPUT, "line %d: expected %s, not '%.80s'", line_of(reader), expected, text);
}

/* ---- interned texts ---- */

static bool words_grow(Words *words) {
    size_t n_slots = words->n_slots ? words->n_slots * 2 : 256;
    int32_t *slots = malloc(n_slots * sizeof *slots);
    const char **items = realloc(words->items, n_slots / 2 * sizeof *items);
    if (items) words->items = items;
    if (!slots || !items) {
        free(slots);
        return false;
    }
    for (size_t i = 0; i < n_slots; i++) slots[i] = NO_WORD;
    for (int32_t word = 0; word < words->n; word++) {
        size_t at = XXH3_64bits(items[word], strlen(items[word])) & (n_slots - 1);
        while (slots[at] != NO_WORD) at = (at + 1) & (n_slots - 1);
        slots[at] = word;
    }
    free(words->slots);
    words->slots = slots;
    words->n_slots = n_slots;
    words->room = (int32_t)(n_slots / 2);
    return true;
}

/* The number of this text; a new number if it was not seen before. */
static Status word_of(Words *words, const char *text, int32_t *word) {
    if (words->n == words->room && !words_grow(words)) return status_errno(ENOMEM, "cannot hold %d names", (int)words->n);
    size_t at = XXH3_64bits(text, strlen(text)) & (words->n_slots - 1);
    for (; words->slots[at] != NO_WORD; at = (at + 1) & (words->n_slots - 1)) {
        *word = words->slots[at];
        if (strcmp(words->items[*word], text) == 0) return ST_OK;
    }
    const char *copy = arena_strdup(words->arena, text);
    if (!copy) return ST_RESOURCE;
    *word = words->slots[at] = words->n;
    words->items[words->n++] = copy;
    return ST_OK;
}

static Status need_word(Reader *reader, const char *expected, int32_t *word) {
    TRY(need_scalar(reader, expected));
    return word_of(&reader->words, text_of(reader), word);
}

/* ---- the file's keys: each function reads the current value ---- */

static Status read_names(Reader *reader, Names *names, const char *expected) {
    names->line = line_of(reader);
    if (mdp_file_is(reader, YAML_SEQUENCE_START_EVENT)) {
        names->named = true;
        while (true) {
            TRY(mdp_next_event(reader));
            if (mdp_file_is(reader, YAML_SEQUENCE_END_EVENT)) break;
            TRY(array_grow(&names->words, &names->room, (size_t)names->n + 1, sizeof *names->words, "names"));
            TRY(need_word(reader, "a name", &names->words[names->n]));
            for (const char *at = reader->words.items[names->words[names->n]]; *at; at++)
                if ((unsigned char)*at < ' ' || *at == 0x7f) return mdp_file_fault(reader, "names without control characters");
            names->n++;
        }
        return names->n > 0 ? ST_OK : mdp_file_fault(reader, expected);
    }
    TRY(need_scalar(reader, expected));
    bool fine = parse_whole(text_of(reader), &names->n) && names->n >= 1 && names->n <= INT32_MAX;
    return fine ? ST_OK : status_fail(ST_INPUT, "line %d: expected %s, not '%.80s'", line_of(reader), expected, text_of(reader));
}

static Status read_states(Reader *reader) { return read_names(reader, &reader->states, "how many states there are, or a list of their names"); }
static Status read_actions(Reader *reader) { return read_names(reader, &reader->actions, "how many actions there are, or a list of their names"); }

static Status read_gamma(Reader *reader) {
    TRY(need_number(reader, "a number from 0 to 1", &reader->gamma));
    if ((reader->gamma >= 0 && reader->gamma <= 1) || !isnan(reader->other_gamma)) return ST_OK;
    return status_fail(ST_INPUT, "line %d: gamma is %.15g, expected 0 to 1", line_of(reader), reader->gamma);
}

static Status read_place(Reader *reader, Places *places, const char *expected) {
    TRY(array_grow(&places->items, &places->room, places->n + 1, sizeof *places->items, "states"));
    Place *place = &places->items[places->n];
    *place = (Place){.line = line_of(reader), .probability = 1};
    TRY(need_word(reader, expected, &place->state));
    places->n++;
    return ST_OK;
}

static Status read_terminal(Reader *reader) {
    if (!mdp_file_is(reader, YAML_SEQUENCE_START_EVENT)) return read_place(reader, &reader->terminals, "a list of states");
    while (true) {
        TRY(mdp_next_event(reader));
        if (mdp_file_is(reader, YAML_SEQUENCE_END_EVENT)) return ST_OK;
        TRY(read_place(reader, &reader->terminals, "a state"));
    }
}

static Status read_start(Reader *reader) {
    if (!mdp_file_is(reader, YAML_MAPPING_START_EVENT)) return read_place(reader, &reader->starts, "a state, or {state: probability}");
    while (true) {
        TRY(mdp_next_event(reader));
        if (mdp_file_is(reader, YAML_MAPPING_END_EVENT)) return ST_OK;
        TRY(read_place(reader, &reader->starts, "a state"));
        TRY(mdp_next_event(reader));
        TRY(need_number(reader, "the probability of starting there", &reader->starts.items[reader->starts.n - 1].probability));
    }
}

/* Reads whether the episode ends. */
static Status read_ends(const Reader *reader, bool *ends) {
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};
    TRY(need_scalar(reader, "true, false or ]"));
    *ends = false;
    if (is_null(reader)) return ST_OK;
    /* without `actions` 1 and 0 are not accepted: a fifth number means a transition with an action */
    for (size_t i = 0; i < COUNT_OF(yes) - reader->is_chain; i++) {
        *ends = strcasecmp(text_of(reader), yes[i]) == 0;
        if (*ends || strcasecmp(text_of(reader), no[i]) == 0) return ST_OK;
    }
    status_fail(ST_INPUT, "line %d: expected true or false for the end of the episode, not '%.80s'", line_of(reader), text_of(reader));
    if (!reader->is_chain) return ST_INPUT;
    return status_hint(
        ST_INPUT, "without the key 'actions' a transition is [state, next state, probability, reward]; add actions: N if transitions have an action");
}

/* A chain's transition may omit the reward, which is then 0. */
static Status read_reward(Reader *reader, double *reward) {
    if (reader->is_chain && mdp_file_is(reader, YAML_SEQUENCE_END_EVENT)) return ST_OK;
    reader->has_rewards = true;
    TRY(need_number(reader,
                    reader->is_chain ? "a reward in [state, next state, probability, reward]"
                                     : "a reward in [state, action, next state, probability, reward]",
                    reward));
    return mdp_next_event(reader);
}

static Status read_transition(Reader *reader) {
    const char *form = reader->is_chain
                           ? "[state, next state, probability, reward] (there is no key 'actions') or the same with true where the episode ends"
                           : "[state, action, next state, probability, reward] or the same with true where the episode ends";
    if (!mdp_file_is(reader, YAML_SEQUENCE_START_EVENT)) return mdp_file_fault(reader, form);
    TRY(array_grow(&reader->transitions, &reader->room, reader->n_transitions + 1, sizeof *reader->transitions, "transitions"));
    Transition *t = &reader->transitions[reader->n_transitions];
    *t = (Transition){.line = line_of(reader)};
    TRY(mdp_next_event(reader));
    TRY(need_word(reader, form, &t->state));
    TRY(mdp_next_event(reader));
    if (!reader->is_chain) {
        TRY(need_word(reader, form, &t->action));
        TRY(mdp_next_event(reader));
    }
    TRY(need_word(reader, form, &t->next));
    TRY(mdp_next_event(reader));
    TRY(need_number(reader,
                    reader->is_chain ? "a probability in [state, next state, probability, reward]"
                                     : "a probability in [state, action, next state, probability, reward]",
                    &t->probability));
    if (!(t->probability >= 0 && t->probability <= 1 + 1e-9)) /* the tolerance of sums: programs that merge outcomes round */
        return status_fail(ST_INPUT, "line %d: a probability is %.17g, expected 0 to 1", line_of(reader), t->probability);
    TRY(mdp_next_event(reader));
    TRY(read_reward(reader, &t->reward));
    if (!mdp_file_is(reader, YAML_SEQUENCE_END_EVENT)) {
        TRY(read_ends(reader, &t->ends));
        TRY(mdp_next_event(reader));
    }
    if (!mdp_file_is(reader, YAML_SEQUENCE_END_EVENT)) return mdp_file_fault(reader, form);
    reader->n_transitions++;
    return ST_OK;
}

/* The form of transitions depends on the key `actions`, which may come after them, so the keys are scanned first. The main pass reports YAML
 * errors. */
static Status find_out_about_actions(Reader *reader) {
    yaml_parser_t parser;
    yaml_event_t event;
    int depth = 0;
    bool is_key = true, wants_value = false, more = true;
    if (reader->actions.n > 0) return ST_OK;
    if (!yaml_parser_initialize(&parser)) return status_errno(ENOMEM, "cannot parse it");
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)str_text(reader->text), reader->text->len);
    reader->is_chain = true;
    while (more && yaml_parser_parse(&parser, &event)) {
        bool opens = event.type == YAML_MAPPING_START_EVENT || event.type == YAML_SEQUENCE_START_EVENT,
             closes = event.type == YAML_MAPPING_END_EVENT || event.type == YAML_SEQUENCE_END_EVENT;
        depth -= closes;
        if (depth == 1 && (event.type == YAML_SCALAR_EVENT || opens || closes)) {
            if (wants_value && (event.type != YAML_SCALAR_EVENT || !is_null_event(&event))) reader->is_chain = more = false;
            wants_value = is_key && event.type == YAML_SCALAR_EVENT && strcmp((const char *)event.data.scalar.value, "actions") == 0;
            if (!opens) is_key = !is_key;
        }
        depth += opens;
        more = more && event.type != YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return ST_OK;
}

static Status read_transitions(Reader *reader) {
    TRY(find_out_about_actions(reader));
    if (!mdp_file_is(reader, YAML_SEQUENCE_START_EVENT)) return mdp_file_fault(reader, "a list of transitions");
    while (true) {
        TRY(mdp_next_event(reader));
        if (mdp_file_is(reader, YAML_SEQUENCE_END_EVENT)) return ST_OK;
        TRY(read_transition(reader));
    }
}

typedef struct Key {
    const char *name;
    Status (*read)(Reader *reader);
    bool needed;
} Key;
static const Key keys[] = {
    {"states", read_states, true}, {"actions", read_actions, false},   {"gamma", read_gamma, false},
    {"start", read_start, false},  {"terminal", read_terminal, false}, {"transitions", read_transitions, true},
};

static Status unknown_key(const Reader *reader) {
    const char *names[COUNT_OF(keys)];
    for (size_t i = 0; i < COUNT_OF(keys); i++) names[i] = keys[i].name;
    status_fail(ST_INPUT, "line %d: unknown key '%.80s'", line_of(reader), text_of(reader));
    return status_hint_nearest(ST_INPUT, text_of(reader), names, COUNT_OF(keys), "an MDP file has ");
}

static Status read_document(Reader *reader) {
    int seen[COUNT_OF(keys)] = {0};
    bool given[COUNT_OF(keys)] = {false};
    TRY(mdp_next_event(reader)); /* start of the stream */
    TRY(mdp_next_event(reader)); /* start of the document */
    if (mdp_file_is(reader, YAML_STREAM_END_EVENT)) return status_fail(ST_INPUT, "line 1: the file is empty");
    TRY(mdp_next_event(reader));
    if (!mdp_file_is(reader, YAML_MAPPING_START_EVENT)) return mdp_file_fault(reader, "the keys states, actions, gamma and transitions");
    while (true) {
        TRY(mdp_next_event(reader));
        if (mdp_file_is(reader, YAML_MAPPING_END_EVENT)) break;
        TRY(need_scalar(reader, "a key"));
        size_t i = 0;
        while (i < COUNT_OF(keys) && strcmp(keys[i].name, text_of(reader)) != 0) i++;
        if (i == COUNT_OF(keys)) return unknown_key(reader);
        if (seen[i]) return status_fail(ST_INPUT, "line %d: key '%s' is already on line %d", line_of(reader), keys[i].name, seen[i]);
        seen[i] = line_of(reader);
        TRY(mdp_next_event(reader));
        given[i] = !is_null(reader);
        if (given[i]) TRY(keys[i].read(reader));
    }
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        if (keys[i].needed && !given[i]) return status_fail(ST_INPUT, "line 1: key '%s' is missing", keys[i].name);
    if (!isnan(reader->other_gamma)) reader->gamma = reader->other_gamma;
    if (reader->is_chain && !reader->has_rewards && isnan(reader->gamma)) reader->gamma = 1; /* a chain without rewards */
    if (reader->is_chain) reader->actions.n = 1;
    if (isnan(reader->gamma))
        return status_hint(status_fail(ST_INPUT, "line 1: key 'gamma' is missing"), "gamma: 0.9 in the file, or after its name: FILE:gamma=0.9");
    TRY(mdp_next_event(reader)); /* end of the document */
    TRY(mdp_next_event(reader));
    return mdp_file_is(reader, YAML_STREAM_END_EVENT) ? ST_OK : status_fail(ST_INPUT, "line %d: a second document starts", line_of(reader));
}

/* ---- names to numbers ---- */

/* Sets found[word] to the index of the state or action that the word names; names take precedence over numbers. */
static Status resolve(const Reader *reader, const Names *names, const char *what, int32_t **found) {
    const Words *words = &reader->words;
    *found = malloc(((size_t)words->n + 1) * sizeof **found);
    if (!*found) return status_errno(ENOMEM, "cannot look up %d names", (int)words->n);
    for (int32_t word = 0; word < words->n; word++) {
        int64_t value;
        (*found)[word] = parse_whole(words->items[word], &value) && value >= 0 && value < names->n ? (int32_t)value : NOT_FOUND;
    }
    if (!names->named) return ST_OK;
    bool *listed = calloc((size_t)words->n + 1, 1);
    if (!listed) return status_errno(ENOMEM, "cannot look up %d names", (int)words->n);
    Status status = ST_OK;
    for (int64_t i = 0; i < names->n && status == ST_OK; i++) {
        int32_t word = names->words[i];
        if (listed[word]) status = status_fail(ST_INPUT, "line %d: two %ss are named '%.80s'", names->line, what, words->items[word]);
        listed[word] = true;
        (*found)[word] = (int32_t)i;
    }
    free(listed);
    return status;
}

static const char **names_list(const Reader *reader, const Names *names, Arena *arena) {
    const char **list = arena_alloc(arena, (size_t)names->n * sizeof *list);
    for (int64_t i = 0; list && i < names->n; i++) list[i] = reader->words.items[names->words[i]];
    return list;
}

static Status not_found(const Reader *reader, const Names *names, const char *what, int32_t word, int line) {
    const char *text = reader->words.items[word];
    int64_t number;
    if (!names->named || parse_whole(text, &number))
        return status_fail(ST_INPUT, "line %d: there is no %s '%.80s': there are %lld, counted from 0", line, what, text, (long long)names->n);
    const char **list = names_list(reader, names, reader->words.arena);
    status_fail(ST_INPUT, "line %d: there is no %s '%.80s'", line, what, text);
    return status_hint_nearest(ST_INPUT, text, list, list ? (size_t)names->n : 0, NULL);
}

static Status mdp_file_build(const Reader *reader, const int32_t *states, const int32_t *actions, MdpBuilder *builder) {
    const Names *named_states = &reader->states, *named_actions = &reader->actions;
    const char **state_names = named_states->named ? names_list(reader, named_states, reader->words.arena) : NULL;
    const char **action_names = named_actions->named ? names_list(reader, named_actions, reader->words.arena) : NULL;
    if ((named_states->named && !state_names) || (named_actions->named && !action_names)) return ST_RESOURCE;
    mdp_builder_names(builder, state_names, action_names);
    if (reader->is_chain) mdp_builder_chain(builder);
    for (size_t i = 0; i < reader->n_transitions; i++) {
        const Transition *t = &reader->transitions[i];
        if (states[t->state] == NOT_FOUND) return not_found(reader, named_states, "state", t->state, t->line);
        if (!reader->is_chain && actions[t->action] == NOT_FOUND) return not_found(reader, named_actions, "action", t->action, t->line);
        if (states[t->next] == NOT_FOUND) return not_found(reader, named_states, "state", t->next, t->line);
        mdp_builder_line(builder, t->line);
        mdp_builder_add(builder, states[t->state], reader->is_chain ? 0 : actions[t->action], states[t->next], t->probability, t->reward, t->ends);
    }
    for (size_t i = 0; i < reader->terminals.n + reader->starts.n; i++) {
        bool is_start = i >= reader->terminals.n;
        const Place *place = is_start ? &reader->starts.items[i - reader->terminals.n] : &reader->terminals.items[i];
        if (states[place->state] == NOT_FOUND) return not_found(reader, named_states, "state", place->state, place->line);
        mdp_builder_line(builder, place->line);
        if (is_start)
            mdp_builder_start(builder, states[place->state], place->probability);
        else
            mdp_builder_terminal(builder, states[place->state]);
    }
    return ST_OK;
}

static Status make_world(const Reader *reader, NamedMdp **world) {
    int32_t *states = NULL, *actions = NULL;
    Status status = resolve(reader, &reader->states, "state", &states);
    if (status == ST_OK) status = resolve(reader, &reader->actions, "action", &actions);
    MdpBuilder *builder = status == ST_OK ? mdp_builder_new(reader->states.n, reader->actions.n, reader->gamma) : NULL;
    if (status == ST_OK && !builder) status = ST_RESOURCE;
    if (status == ST_OK) status = mdp_file_build(reader, states, actions, builder);
    if (status == ST_OK)
        status = mdp_builder_finish(builder, world);
    else
        mdp_builder_free(builder);
    free(states);
    free(actions);
    return status;
}

/* ---- the file ---- */

static bool hex4(const char *text, uint32_t *value) {
    *value = 0;
    for (int i = 0; i < 4; i++) {
        if (!isxdigit((unsigned char)text[i])) return false;
        char c = (char)tolower((unsigned char)text[i]);
        *value = *value * 16 + (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return true;
}

/* JSON writes a character beyond U+FFFF as two escapes, which YAML does not support: replaces them by the character, in place. */
static void join_surrogates(Str *text) {
    size_t to = 0;
    for (size_t i = 0; i < text->len;) {
        uint32_t high, low;
        const char *at = text->data + i;
        size_t left = text->len - i;
        if (*at == '\\' && left >= 12 && at[1] == 'u' && at[6] == '\\' && at[7] == 'u' && hex4(at + 2, &high) && hex4(at + 8, &low) &&
            high >> 10 == 0x36 && low >> 10 == 0x37) {
            char bytes[4];
            size_t n = utf8_encode(0x10000 + ((high & 0x3ff) << 10) + (low & 0x3ff), bytes);
            memcpy(text->data + to, bytes, n);
            to += n;
            i += 12;
        } else {
            size_t n = *at == '\\' && left > 1 ? 2 : 1; /* an escaped backslash does not start an escape */
            memmove(text->data + to, at, n);
            to += n;
            i += n;
        }
    }
    text->len = to;
    if (text->data) text->data[to] = '\0';
}

static Status read_text(const Str *text, double gamma, NamedMdp **world) {
    Reader reader = {.text = text, .gamma = (double)NAN, .other_gamma = gamma, .words.arena = arena_new(0)};
    if (!reader.words.arena) return ST_RESOURCE;
    if (!yaml_parser_initialize(&reader.parser)) {
        arena_free(reader.words.arena);
        return status_errno(ENOMEM, "cannot parse it");
    }
    yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)str_text(text), text->len);
    Status status = read_document(&reader);
    yaml_event_delete(&reader.event);
    yaml_parser_delete(&reader.parser);
    if (status == ST_OK) status = make_world(&reader, world);
    free(reader.words.items);
    free(reader.words.slots);
    free(reader.states.words);
    free(reader.actions.words);
    free(reader.transitions);
    free(reader.starts.items);
    free(reader.terminals.items);
    arena_free(reader.words.arena);
    return status;
}

Status mdp_read_file(const char *path, double gamma, NamedMdp **world) {
    *world = NULL;
    Str text = {0};
    Status status = file_read(path, MAX_BYTES, &text);
    if (status == ST_OK) {
        if (text_ends_with(path, ".json")) join_surrogates(&text);
        status = read_text(&text, gamma, world);
        if (status != ST_OK) status_prefix(status, "cannot read '%s'", path);
    }
    str_release(&text);
    return status;
}
