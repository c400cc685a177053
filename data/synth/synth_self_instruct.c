/* SPDX-License-Identifier: Apache-2.0 */
/* self-instruct (Wang et al. 2022): shows 6 seeds and 2 machine-made tasks, and the teacher continues the list. Each task is classified as a
 * classification or not. Then its instances are generated: the input first, or for classification each label first and an input for it. */
#include "data/synth/synth_parts.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

enum { TASKS, CLASSIFY, INPUT_FIRST, OUTPUT_FIRST, LABEL };
enum { MOST_TASKS = 64 };

/* ---- a list of tasks ---- */

/* The number that a line begins with and the text after it ("9. ", "9) "); NULL if there is no number. */
static const char *behind_number(const char *line) {
    size_t digits = strspn(line, "0123456789");
    const char *at = line + digits;
    if (digits == 0 || digits > 3) return NULL;
    while (*at == ' ') at++;
    return (*at == '.' || *at == ')') && (at[1] == ' ' || at[1] == '\n' || at[1] == '\0') ? at + 1 : NULL;
}

typedef struct TaskList {
    const char *items[MOST_TASKS];
    size_t n;
} TaskList;

/* Removes headings such as "Task 9:", folds white space to one blank, cuts off a final colon, and capitalises the first letter. */
static const char *tidy(Synth *s, const char *item, size_t len) {
    const char *text = synth_clean(s, synth_text(s, item, len));
    char *out = text ? arena_alloc(s->round.arena, strlen(text) + 1) : NULL;
    size_t n = 0;
    if (!out) return NULL;
    for (; *text; text++) {
        bool space = isspace((unsigned char)*text);
        if (space && (n == 0 || out[n - 1] == ' ')) continue;
        out[n++] = space ? ' ' : *text;
    }
    while (n && (out[n - 1] == ' ' || out[n - 1] == ':')) n--;
    out[n] = '\0';
    out[0] = (char)toupper((unsigned char)out[0]);
    return out;
}

/* Items are split at lines that begin with a number. Text before the first number is an item only if the prompt itself ended with a number. */
static void split_list(Synth *s, const char *text, bool goes_on, TaskList *list) {
    const char *item = goes_on ? text : NULL;
    for (const char *line = text; list->n < MOST_TASKS; line++) {
        const char *next = behind_number(line);
        if ((next || *line == '\0') && item && line > item) {
            const char *task = tidy(s, item, (size_t)(line - item));
            if (task && task[0]) list->items[list->n++] = task;
        }
        if (next) item = next;
        line = strchr(line, '\n');
        if (!line) {
            if (item && list->n < MOST_TASKS) {
                const char *task = tidy(s, item, strlen(item));
                if (task && task[0]) list->items[list->n++] = task;
            }
            return;
        }
    }
}

/* ---- self-instruct: one request and its tasks ---- */

static const SynthStage stages[] = {
    [TASKS] = {.name = "tasks",
               .prompt = "self_instruct_tasks",
               .max_new_tokens = 1024,
               .temperature = 0.7,
               .top_p = 0.5,
               .presence_penalty = 2,
               .base_stop = {"\n\n", "\n16", "16.", "16 ."}},
    [CLASSIFY] = {.name = "classify", .prompt = "self_instruct_classify", .max_new_tokens = 3, .temperature = 0},
    [INPUT_FIRST] = {.name = "input_first",
                     .prompt = "self_instruct_input_first",
                     .max_new_tokens = 350,
                     .temperature = 0,
                     .presence_penalty = 1.5,
                     .base_stop = {"Example 6", "Task:"}},
    [OUTPUT_FIRST] = {.name = "output_first",
                      .prompt = "self_instruct_output_first",
                      .max_new_tokens = 300,
                      .temperature = 0,
                      .presence_penalty = 1.5,
                      .base_stop = {"Example 6", "Task:"}},
    [LABEL] = {.name = "label", .prompt = "self_instruct_label", .max_new_tokens = 16, .temperature = 0, .checks_labels = true},
    {0},
};

static Status synth_self_instruct_open(Synth *s) { return synth_examples_open(s, 6, 6, 2, false); }

typedef struct Lists {
    SynthCandidate **items;
    size_t n, cap;
} Lists;

static bool synth_self_instruct_push(Synth *s, Lists *list, SynthCandidate *c) {
    if (arena_array_grow(s->round.arena, &list->items, &list->cap, list->n + 1, sizeof *list->items) != ST_OK) return false;
    list->items[list->n++] = c;
    return true;
}

/* Another task from the same reply. */
static SynthCandidate *add_candidate(Synth *s, Lists *list, const char *type, const SynthCandidate *origin) {
    SynthCandidate *c = synth_candidate(s, type);
    if (!c || !synth_self_instruct_push(s, list, c)) return NULL;
    c->seed_ids = origin->seed_ids, c->n_seed_ids = origin->n_seed_ids;
    c->parents = origin->parents, c->n_parents = origin->n_parents;
    c->requests = origin->requests, c->n_requests = origin->n_requests;
    c->instruction = origin->instruction;
    c->judged = origin->judged;
    c->scores = json_copy(origin->scores);
    return c;
}

/* A reply without any task becomes a candidate, too, so that it is counted. */
static Status no_task(Synth *s, Lists *tasks, const char *type, const SynthCandidate *origin, const SynthRequest *request, const char *reason) {
    SynthCandidate *c = add_candidate(s, tasks, type, origin);
    if (!c) return ST_RESOURCE;
    c->instruction = request->text;
    return synth_reject(s, c, reason);
}

static Status take_tasks(Synth *s, const SynthRequest *request, const SynthCandidate *origin, Lists *tasks) {
    TaskList list = {0};
    const char *type = s->seeds.types[0].name;
    if (request->refused || request->cut) return no_task(s, tasks, type, origin, request, request->refused ? synth_refusal(request) : "cut");
    s->stages[TASKS].count.kept++;
    split_list(s, request->text, !teacher_chats(s->teacher), &list);
    if (list.n == 0) return no_task(s, tasks, type, origin, request, "no_task");
    for (size_t i = 0; i < list.n; i++) {
        SynthCandidate *c = add_candidate(s, tasks, type, origin);
        if (!c) return ST_RESOURCE;
        c->instruction = list.items[i];
    }
    return ST_OK;
}

/* The number of requests that will probably give enough tasks. */
static Status ask_for_tasks(Synth *s, Lists *tasks) {
    int64_t each = s->recipe->synth_tasks_per_request > 0 ? s->recipe->synth_tasks_per_request : 8;
    size_t n = (synth_round_size(s) + (size_t)each - 1) / (size_t)each;
    SynthCandidate *origins = arena_zero(s->round.arena, n * sizeof *origins);
    SynthRequest **requests = arena_alloc(s->round.arena, n * sizeof *requests);
    if (!origins || !requests) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        json_t *examples = synth_examples(s, NULL, &origins[i]);
        requests[i] = synth_request(s, TASKS, json_pack("{s:o, s:I}", "examples", examples, "n", (json_int_t)each));
        if (!requests[i]) return s->status;
        candidate_request(s, &origins[i], requests[i]);
    }
    TRY(synth_ask(s));
    for (size_t i = 0; i < n; i++) TRY(take_tasks(s, requests[i], &origins[i], tasks));
    return ST_OK;
}

/* ---- classification or not ---- */

static const char *type_named(const Synth *s, bool classification) {
    const char *name = classification ? "classification" : "generation";
    for (size_t t = 0; t < s->seeds.n_types; t++)
        if (strcmp(s->seeds.types[t].name, name) == 0) return s->seeds.types[t].name;
    return name;
}

static Status classify(Synth *s, const Lists *tasks) {
    static const char *const choices[] = {" Yes", " No"}, *const words[] = {"Yes", "No"};
    bool chats = teacher_chats(s->teacher);
    SynthRequest **requests = arena_zero(s->round.arena, MAX(tasks->n, 1) * sizeof *requests);
    if (!requests) return ST_RESOURCE;
    for (size_t i = 0; i < tasks->n; i++)
        if (!tasks->items[i]->rejected)
            requests[i] = synth_request_choice(s, CLASSIFY, json_pack("{s:s}", "task", tasks->items[i]->instruction), chats ? words : choices, 2);
    TRY(synth_ask(s));
    for (size_t i = 0; i < tasks->n; i++) {
        if (!requests[i]) continue;
        candidate_request(s, tasks->items[i], requests[i]);
        s->stages[CLASSIFY].count.kept++;
        tasks->items[i]->type = type_named(s, strstr(requests[i]->text, "Yes") != NULL);
    }
    return s->status;
}

/* ---- instances ---- */

typedef struct Instance {
    const char *input, *output;
} Instance;
typedef struct Instances {
    Instance items[MOST_TASKS];
    size_t n;
} Instances;

typedef struct Mark {
    const char *line, *text;
} Mark; /* a line that begins with a field's name, and the text after the name; NULL: none */

static const char *next_line(const char *text) {
    const char *end = strchr(text, '\n');
    return end ? end + 1 : NULL;
}

/* text: the start of a line; NULL: no more lines. */
static Mark find_name(const char *text, const char *name) {
    for (const char *line = text; line && *line; line = next_line(line)) {
        const char *after = synth_text_after_name(line, name);
        if (after) return (Mark){line, after};
    }
    return (Mark){0};
}

/* The next line that says "Example 2"; NULL: none. */
static const char *find_example(const char *text) {
    for (const char *line = text; line && *line; line = next_line(line))
        if (strncasecmp(line + strspn(line, " *#"), "example ", 8) == 0) return line;
    return NULL;
}

static const char *field_text(Synth *s, const char *begin, const char *end) {
    const char *text = synth_field(s, begin, end);
    static const char *const nothings[] = {"none", "none.", "n/a", "<noinput>", "<no input>", "no input", "(none)", "no input needed"};
    for (size_t i = 0; i < COUNT_OF(nothings) && text; i++)
        if (strcasecmp(text, nothings[i]) == 0) return "";
    return text;
}

/* "Example 1" (if there are several), then "Input: ..." (if there is one) and "Output: ...". Without any name the full text is the output. */
static void split_input_first(Synth *s, const char *text, Instances *found) {
    const char *end = text + strlen(text);
    if (!find_name(text, "output").line) {
        if (!find_name(text, "input").line) found->items[found->n++] = (Instance){"", field_text(s, text, end)};
        return;
    }
    for (const char *at = text; at && found->n < MOST_TASKS;) {
        Mark output = find_name(at, "output");
        if (!output.line) return;
        Mark input = find_name(at, "input"), more = find_name(next_line(output.text), "input");
        const char *next = find_example(next_line(output.text)), *stop = next && (!more.line || next < more.line) ? next
                                                                         : more.line                              ? more.line
                                                                                                                  : end;
        bool has_input = input.line && input.line < output.line;
        found->items[found->n++] = (Instance){has_input ? field_text(s, input.text, output.line) : "", field_text(s, output.text, stop)};
        at = stop < end ? stop : NULL;
    }
}

/* "Class label: ..." and an input for it, repeated. */
static void split_output_first(Synth *s, const char *text, Instances *found) {
    static const char name[] = "class label";
    const char *end = text + strlen(text);
    for (Mark at = find_name(text, name); at.line && found->n < MOST_TASKS;) {
        Mark next = find_name(next_line(at.text), name);
        const char *line = strchr(at.text, '\n'), *stop = next.line ? next.line : end, *label_end = line && line < stop ? line : stop,
                   *input = label_end;
        while (input < stop && isspace((unsigned char)*input)) input++;
        const char *after = synth_text_after_name(input, "input");
        if (after && after <= stop) input = after;
        found->items[found->n++] = (Instance){field_text(s, input, stop), field_text(s, at.text, label_end)};
        at = next;
    }
}

/* Each input must have a single output: if the same input has different outputs, all instances of the task are dropped; a repeated pair counts once.
 * Returns false if outputs contradict. */
static bool unite(Instances *found) {
    size_t n = 0;
    for (size_t i = 0; i < found->n; i++) {
        bool again = false;
        for (size_t j = 0; j < n; j++) {
            if (strcmp(found->items[i].input, found->items[j].input) != 0) continue;
            if (strcmp(found->items[i].output, found->items[j].output) != 0) return false;
            again = true;
        }
        if (!again) found->items[n++] = found->items[i];
    }
    found->n = n;
    return true;
}

static Status no_instance(Synth *s, SynthCandidate *task, const SynthRequest *request, const char *reason) {
    task->output = request->text;
    return synth_reject(s, task, reason);
}

/* The task becomes its first instance; the others become separate rows. */
static Status take_instances(Synth *s, SynthCandidate *task, const SynthRequest *request, bool output_first, Lists *rows) {
    Instances found = {0};
    if (request->refused) return no_instance(s, task, request, synth_refusal(request));
    s->stages[request->stage].count.kept++;
    if (output_first)
        split_output_first(s, request->text, &found);
    else
        split_input_first(s, request->text, &found);
    if (found.n && request->cut && !s->recipe->synth_keep_cut) found.n--; /* the last one is incomplete */
    if (found.n == 0) return no_instance(s, task, request, request->cut ? "cut" : "no_instance");
    if (!unite(&found)) return no_instance(s, task, request, "contradiction");
    if (!synth_self_instruct_push(s, rows, task)) return ST_RESOURCE;
    for (size_t i = 0; i < MIN(found.n, (size_t)s->recipe->synth_max_instances); i++) {
        SynthCandidate *c = i == 0 ? task : add_candidate(s, rows, task->type, task);
        if (!c || !found.items[i].input || !found.items[i].output) return ST_RESOURCE;
        c->input = found.items[i].input;
        c->output = found.items[i].output;
    }
    return ST_OK;
}

static Status ask_for_instances(Synth *s, const Lists *tasks, Lists *rows) {
    SynthRequest **requests = arena_zero(s->round.arena, MAX(tasks->n, 1) * sizeof *requests);
    if (!requests) return ST_RESOURCE;
    for (size_t i = 0; i < tasks->n; i++) {
        const SynthCandidate *task = tasks->items[i];
        bool output_first = strcmp(task->type, "classification") == 0;
        if (!task->rejected)
            requests[i] = synth_request(s, output_first ? OUTPUT_FIRST : INPUT_FIRST,
                                        json_pack("{s:s, s:I}", "task", task->instruction, "n", (json_int_t)s->recipe->synth_max_instances));
    }
    TRY(synth_ask(s));
    for (size_t i = 0; i < tasks->n; i++) {
        if (!requests[i]) continue;
        candidate_request(s, tasks->items[i], requests[i]);
        TRY(take_instances(s, tasks->items[i], requests[i], requests[i]->stage == OUTPUT_FIRST, rows));
    }
    return s->status;
}

static Status make_round(Synth *s) {
    Lists tasks = {0}, rows = {0};
    TRY(ask_for_tasks(s, &tasks));
    TRY(synth_apply_filters(s, FILTER_PROMPT, tasks.items, tasks.n));
    TRY(classify(s, &tasks));
    TRY(ask_for_instances(s, &tasks, &rows));
    if (s->recipe->synth_check_labels) TRY(synth_check_labels(s, LABEL, "classification", rows.items, rows.n));
    return synth_write_rows(s, rows.items, rows.n);
}

const SynthPreset synth_preset_self_instruct = {
    .name = "self-instruct",
    .help = "the teacher sees 6 seeds and 2 kept rows and lists tasks; then it writes inputs and outputs of each",
    .stages = stages,
    .needs = NEEDS_INSTRUCTION,
    .new_prompts = true,
    .filters =
        "{empty: true, length: true, refusal: true, exact: true, words: {min: 4, max: 150}, blacklist: {preset: self-instruct}, punctuation_start: true, ascii_start: true, colon_end: true, equal: true, rouge_l: {threshold: 0.7, on: instruction}}",
    .keys = "examples machine_examples max_instances tasks_per_request check_labels keep_cut",
    .types = "classification generation",
    .open = synth_self_instruct_open,
    .make_round = make_round,
};
