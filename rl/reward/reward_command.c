/* SPDX-License-Identifier: Apache-2.0 */
/* command: a long-running program that answers each JSON row with one line: a number, or an object with the number "reward" and optionally others.
 * Several workers share the rows; each row has a time limit. A program that exits is restarted and gets the row once more. Answers are cached: the
 * same row is not sent twice. */
#include "lib/child/child.h"
#include "lib/base/answers.h"
#include "lib/base/file.h"
#include "lib/base/log.h"
#include "lib/base/system.h"
#include "lib/base/work.h"
#include "rl/reward/reward_kinds.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { COMMAND, TIMEOUT, WORKERS, SANDBOX, READ, MEMORY, CPU, CACHE, FAILED, MAX_WORKERS = 64, MOST_CACHED = 1 << 20 };
static const OptionSpec options[] = {
    [COMMAND] = {.name = "command", .kind = OPTION_YAML, .required = true},
    [TIMEOUT] = {.name = "timeout", .kind = OPTION_NUMBER, .value = 10, .low = 0.001, .high = 86400}, /* seconds per row */
    [WORKERS] = {.name = "workers", .kind = OPTION_WHOLE, .value = 1, .low = 1, .high = MAX_WORKERS},
    [SANDBOX] = {.name = "sandbox", .kind = OPTION_YAML}, /* true, false or best_effort; the next three options belong to it */
    [READ] = {.name = "read", .kind = OPTION_STRINGS},    /* additional files and folders that it may read */
    [MEMORY] = {.name = "memory", .kind = OPTION_WHOLE, .value = 1024, .low = 16, .high = 1 << 24}, /* MiB of address space of each process */
    /* Seconds of processor time of each process; a worker that has used them up is restarted */
    [CPU] = {.name = "cpu", .kind = OPTION_WHOLE, .value = 600, .low = 1, .high = 1e9},
    [CACHE] = {.name = "cache", .kind = OPTION_BOOL, .value = 1},
    [FAILED] = {.name = "failed", .kind = OPTION_NUMBER}, /* reward of a row on which the program exits or hangs; not given: the run stops */
    {0},
};

/* A row that was sent, keyed by the hash of the request. `answer` is NULL until it arrives; `failed`: there will be none. */
typedef struct Known {
    XXH128_hash_t hash;
    const char *answer;
    bool used, pending, failed;
} Known;
typedef struct Job {
    size_t row;
    Str line;
    Known *known;
} Job;
typedef struct Worker {
    Child *child;
    size_t job;
    int tries;
} Worker; /* job: the current one */
typedef struct Command {
    const char **argv;
    size_t n_argv, n_workers;
    ChildLimits limits;
    bool limited;
    Worker workers[MAX_WORKERS];
    Arena *answers; /* memory of the cached answers */
    Known *known;
    size_t n_known, room, n_bytes, n_restarts; /* n_bytes: of the answers */
    bool failed;                               /* a row got the reward `failed`, and the warning was given */
} Command;

/* ---- opening ---- */

static void reward_command_close(Reward *reward) {
    Command *command = reward->state;
    if (!command) return;
    for (size_t i = 0; i < command->n_workers; i++) child_stop(command->workers[i].child, NULL, 0.5);
    if (command->n_restarts > 1)
        log_message(LOG_RANK, "reward '%s': its program exited by itself and was restarted %zu times in all", reward->name, command->n_restarts);
    arena_free(command->answers);
}

/* {rank} and {ranks} in a word of the command are the number of this rank, and how many there are. Other braces are copied. */
static const char *fill_in_ranks(const Reward *reward, const char *word) {
    const struct {
        const char *name;
        int value;
    } names[] = {{"{rank}", comm_rank(reward->context->comm)}, {"{ranks}", comm_size(reward->context->comm)}};
    Str text = {0};
    while (*word) {
        size_t i = 0;
        while (i < COUNT_OF(names) && !text_starts_with(word, names[i].name)) i++;
        if (i < COUNT_OF(names)) {
            str_printf(&text, "%d", names[i].value);
            word += strlen(names[i].name);
        } else
            str_append_char(&text, *word++);
    }
    const char *filled = arena_strdup(reward->arena, str_text(&text));
    str_release(&text);
    return filled;
}

static Status reward_command_start(Command *command, Worker *worker) {
    worker->child = NULL;
    return child_start(command->argv, command->n_argv, command->limited ? &command->limits : NULL, &worker->child);
}

/* The limit is per process: the workers of all ranks of the machine together may use the product. */
static void warn_of_memory(const Reward *reward, double each, size_t n_workers) {
    int which;
    const size_t n = n_workers * (size_t)comm_host_ranks(reward->context->comm, &which);
    double has = (double)memory_available();
    char one[32], all[32], there[32];
    if (n < 2 || each * (double)n <= has) return;
    log_message(LOG_WARNING, "reward '%s': %zu workers may take %s each, %s in all, but %s are available: lower 'memory' or 'workers'", reward->name,
                n, format_bytes(each, one), format_bytes(each * (double)n, all), format_bytes(has, there));
}

static Status read_sandbox(Reward *reward, Command *command) {
    const OptionValue *o = reward->options;
    const Yaml *said = o[SANDBOX].node;
    command->limits = (ChildLimits){.memory_bytes = (uint64_t)o[MEMORY].number << 20,
                                    .cpu_seconds = (uint64_t)o[CPU].number,
                                    .hidden = reward->context->run_folder,
                                    .readable = o[READ].list,
                                    .n_readable = o[READ].n};
    command->limits.best_effort = said && said->kind == YAML_SCALAR && strcmp(said->text, "best_effort") == 0;
    if (command->limits.best_effort)
        command->limited = true;
    else if (said && !yaml_as_bool(said, &command->limited))
        return reward_refuse(reward, said, "wrong value for 'sandbox': expected true, false or best_effort");
    for (int i = READ; i <= CPU; i++)
        if (o[i].node && !command->limited) return reward_refuse(reward, o[i].node, "'%s' needs 'sandbox: true'", options[i].name);
    if (command->limited) warn_of_memory(reward, (double)command->limits.memory_bytes, command->n_workers);
    return ST_OK;
}

static Status reward_command_open(Reward *reward) {
    const OptionValue *o = reward->options;
    const Yaml *words = o[COMMAND].node;
    Command *command = reward->state = arena_zero(reward->arena, sizeof *command);
    if (!command || !(command->answers = arena_new(0))) return ST_RESOURCE;
    bool good = words->kind == YAML_LIST && words->n > 0;
    for (size_t i = 0; good && i < words->n; i++) good = words->items[i]->kind == YAML_SCALAR;
    if (!good)
        return status_hint(reward_refuse(reward, words, "'command' is not a list of words"),
                           "such as command: [python3, recipes/reward_python_tests.py]");
    command->argv = arena_alloc(reward->arena, words->n * sizeof *command->argv);
    if (!command->argv) return ST_RESOURCE;
    for (size_t i = 0; i < words->n; i++)
        if (!(command->argv[i] = fill_in_ranks(reward, words->items[i]->text))) return ST_RESOURCE;
    command->n_argv = words->n;
    command->n_workers = (size_t)o[WORKERS].number;
    TRY(read_sandbox(reward, command));
    if (reward->context->check_only) return ST_OK;
    /* start now, so that a misspelt program is reported before the first rollout */
    Status status = reward_command_start(command, &command->workers[0]);
    if (status != ST_OK) return status_prefix(status, "reward '%s'", reward->name);
    const char *hidden = command->limits.hidden;
    if (!command->limited || !hidden || dir_exists(hidden)) return ST_OK;
    child_stop(command->workers[0].child, NULL, 0); /* the run's folder cannot be hidden before it exists: restart with the first row */
    command->workers[0].child = NULL;
    return ST_OK;
}

/* ---- requests and cached answers ---- */

static void reward_command_forget(Command *command) {
    arena_reset(command->answers);
    command->n_known = command->room = command->n_bytes = 0;
}

/* The table is never more than half full: it grows for all rows of a batch before any pointer into it is taken. */
static Status make_room(Command *command, size_t more) {
    if (2 * (command->n_known + more) <= command->room) return ST_OK;
    size_t room = 1024;
    while (room < 4 * (command->n_known + more)) room *= 2;
    Known *grown = arena_zero(command->answers, room * sizeof *grown), *old = command->known;
    if (!grown) return ST_RESOURCE;
    for (size_t i = 0; i < command->room; i++) {
        size_t at = old[i].hash.low64 & (room - 1);
        while (old[i].used && grown[at].used) at = (at + 1) & (room - 1);
        if (old[i].used) grown[at] = old[i];
    }
    command->known = grown;
    command->room = room;
    return ST_OK;
}

static Known *look_up(Command *command, const Str *line, size_t different) {
    XXH128_hash_t hash = XXH3_128bits_withSeed(line->data, line->len, different);
    size_t at = hash.low64 & (command->room - 1);
    while (command->known[at].used && !XXH128_isEqual(command->known[at].hash, hash)) at = (at + 1) & (command->room - 1);
    Known *known = &command->known[at];
    if (!known->used) {
        command->n_known++;
        *known = (Known){.hash = hash, .used = true};
    }
    return known;
}

/* ---- answers ---- */

static Status read_answer(Reward *reward, Slice answer, size_t row, double *value) {
    const Command *command = reward->state;
    Str who = {0};
    str_printf(&who, "program '%s'", command->argv[0]);
    Status status = reward_read_answer(reward, str_text(&who), answer, row, value);
    str_release(&who);
    return status;
}

/* Every row may cause a restart, so warn only the first, second, fourth... time. */
static void warn_of_restart(const Reward *reward, int64_t row, const Worker *worker) {
    Command *command = reward->state;
    Slice line = child_last_line(worker->child);
    size_t n = ++command->n_restarts;
    if ((n & (n - 1)) != 0) return;
    log_message(LOG_RANK, "reward '%s', row %lld: %s; restarting it (restart %zu) and sending the row once more%s%.*s", reward->name, (long long)row,
                status_text(), n, line.len ? "; its last message: " : "", (int)line.len, line.data);
}

/* ---- asking ---- */

typedef struct Asking {
    Reward *reward;
    Command *command;
    const RewardRow *rows;
    Job *jobs;
    size_t n_jobs, next, answered;
} Asking;

static Status give_job(Asking *asking, Worker *worker) {
    const Job *job = &asking->jobs[worker->job];
    bool fresh = !worker->child; /* output before the first request would be taken for its answer */
    if (fresh) TRY(reward_command_start(asking->command, worker));
    if (!fresh && child_unrequested(worker->child).len > 0)
        return child_add_last_line(worker->child,
                                   status_fail(ST_INPUT, "program '%s' answers with more than one line a row", asking->command->argv[0]));
    child_begin(worker->child, job->line.data, job->line.len, 1, asking->reward->options[TIMEOUT].number);
    return ST_OK;
}

/* Handles a program that exited or did not answer in time. After an exit the row is sent once more; then, with the option `failed`, the row gets that
 * reward. */
static Status worker_failed(Asking *asking, Worker *worker, Status status) {
    Job *job = &asking->jobs[worker->job];
    status = child_add_last_line(worker->child, status);
    if (child_has_ended(worker->child) && worker->tries++ == 0) {
        warn_of_restart(asking->reward, asking->rows[job->row].number, worker);
        child_stop(worker->child, NULL, 0);
        TRY(reward_command_start(asking->command, worker));
        return give_job(asking, worker);
    }
    if (!asking->reward->options[FAILED].node) return status;
    if (!asking->command->failed)
        log_message(LOG_RANK, "reward '%s', row %lld: %s; it gets the reward 'failed', as will further such rows", asking->reward->name,
                    (long long)asking->rows[job->row].number, status_text());
    asking->command->failed = true;
    child_stop(worker->child, NULL, 0);
    worker->child = NULL;
    job->known->failed = true;
    return ST_OK;
}

/* Waits for one answer or failure, and gives the next row to the free worker. */
static Status ask_on(Asking *asking, Worker *worker, Status status, const Str *reply) {
    Command *command = asking->command;
    Job *job = &asking->jobs[worker->job];
    if (status == ST_INTERRUPTED) return status;
    if (status != ST_OK) {
        TRY(worker_failed(asking, worker, status));
        if (!job->known->failed) return ST_OK;
    } else {
        double value = 0;
        status = read_answer(asking->reward, (Slice){reply->data, reply->len}, job->row, &value); /* now, while the row that it belongs to is known */
        if (status != ST_OK) return child_add_last_line(worker->child, status);
        work_at("scoring completions", asking->answered++, asking->n_jobs);
        if ((command->n_bytes += reply->len) > answers_most()) return answers_too_much("program", command->argv[0]);
        if (!(job->known->answer = arena_strndup(command->answers, reply->data, reply->len))) return ST_RESOURCE;
    }
    worker->tries = 0;
    if (asking->next == asking->n_jobs) return ST_OK;
    worker->job = asking->next++;
    return give_job(asking, worker);
}

static Status ask_all(Asking *asking) {
    Command *command = asking->command;
    Status status = ST_OK;
    Worker *worker = NULL;
    Str reply = {0};
    for (size_t i = 0; i < command->n_workers && asking->next < asking->n_jobs; i++) {
        worker = &command->workers[i];
        worker->job = asking->next++;
        worker->tries = 0;
        TRY_GOTO(give_job(asking, worker), out);
    }
    while (true) {
        Child *children[MAX_WORKERS];
        size_t which;
        for (size_t i = 0; i < command->n_workers; i++) children[i] = command->workers[i].child;
        str_clear(&reply);
        Status answered = children_next(children, command->n_workers, &which, &reply);
        if (which == command->n_workers) break;
        worker = &command->workers[which];
        TRY_GOTO(ask_on(asking, worker, answered, &reply), out);
    }
out:
    str_release(&reply);
    work_end("scoring completions");
    if (status == ST_OK) return ST_OK;
    for (size_t i = 0; i < command->n_workers; i++) { /* the other workers' rows are of no use any more */
        child_stop(command->workers[i].child, NULL, 0);
        command->workers[i].child = NULL;
    }
    return reward_at_row(status, asking->reward, &asking->rows[asking->jobs[worker->job].row]);
}

/* One job for each row whose answer is neither cached nor requested yet. */
static void list_jobs(Asking *asking, const RewardRow *rows, size_t n, bool cache, Known **known) {
    for (size_t i = 0; i < n; i++) {
        Str line = {0};
        reward_write_row(&rows[i], &line);
        str_append_char(&line, '\n');
        known[i] = look_up(asking->command, &line, cache ? 0 : i);
        if (known[i]->answer || known[i]->pending) {
            str_release(&line);
        } else {
            known[i]->pending = true;
            known[i]->failed = false;
            asking->jobs[asking->n_jobs++] = (Job){i, line, known[i]};
        }
    }
}

static Status score_all(Reward *reward, const RewardRow *rows, size_t n, double *values) {
    Command *command = reward->state;
    Asking asking = {.reward = reward, .command = command, .rows = rows, .jobs = calloc(MAX(n, 1), sizeof *asking.jobs)};
    Known **known = calloc(MAX(n, 1), sizeof *known);
    bool cache = reward->options[CACHE].number != 0;
    if (!cache || command->n_known > MOST_CACHED || command->n_bytes > answers_most() / 4) reward_command_forget(command);
    Status status = asking.jobs && known ? make_room(command, n) : status_fail(ST_RESOURCE, "out of memory for %zu rows", n);
    if (status == ST_OK) {
        list_jobs(&asking, rows, n, cache, known);
        status = ask_all(&asking);
    }
    for (size_t i = 0; i < asking.n_jobs; i++) {
        asking.jobs[i].known->pending = false;
        str_release(&asking.jobs[i].line);
    }
    for (size_t i = 0; i < n && status == ST_OK; i++) {
        values[i] = reward->options[FAILED].number;
        if (!known[i]->failed)
            status = reward_at_row(read_answer(reward, (Slice){known[i]->answer, strlen(known[i]->answer)}, i, &values[i]), reward, &rows[i]);
    }
    free(asking.jobs);
    free(known);
    return status;
}

const RewardKind reward_kind_command = {
    "command", options, .abstains = true, .open = reward_command_open, .close = reward_command_close, .score_all = score_all};
